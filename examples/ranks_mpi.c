/* Data-parallel ranks agree on every step through MPI: mpirun -np 4 ranks_mpi [STALLED_RANK]. Each rank prints what it
 * concluded. The stalled rank comes to step 3 only when the deadline of all others has passed: TIMEOUT on them. */
#define _POSIX_C_SOURCE 200809L
#include <fwdmeta.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 6, STALLED_STEP = 3, TIMEOUT_US = 60 * 1000 * 1000, SHORT_TIMEOUT_US = 50 * 1000 };

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_us(long us) {
  const struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

/* A collective that has begun cannot be taken back, so it works on memory that outlives the call: after a timeout MPI
 * may still write there. */
struct gather {
  int num_ranks;
  fwdmeta_rank_row_t send, *recv;
  MPI_Request pending;
};

static fwdmeta_status_t gather_rows(const void *send, void *recv, size_t bytes, int64_t deadline_ns, void *user) {
  struct gather *gather = user;
  if (gather->pending != MPI_REQUEST_NULL) return FWDMETA_UNAVAILABLE; /* an earlier one timed out */
  memcpy(&gather->send, send, bytes);
  if (MPI_Iallgather(&gather->send, (int)bytes, MPI_BYTE, gather->recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                     &gather->pending) != MPI_SUCCESS)
    return FWDMETA_UNAVAILABLE;
  for (int done = 0;;) {
    if (MPI_Test(&gather->pending, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return FWDMETA_UNAVAILABLE;
    if (done) break;
    if (now_ns() >= deadline_ns) return FWDMETA_TIMEOUT;
    sleep_us(20);
  }
  memcpy(recv, gather->recv, bytes * (size_t)gather->num_ranks);
  return FWDMETA_OK;
}

/* Keys for decodes of one token a request and for mixed batches, as an engine would have captured them. */
static fwdmeta_status_t make_dispatcher(fwdmeta_dispatcher_t *dispatcher) {
  const int64_t sizes[] = {1, 2, 4, 8, 16, 24, 32};
  fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  config.max_num_seqs = 32, config.max_num_tokens = 1024;
  config.capture_sizes = sizes, config.num_capture_sizes = sizeof(sizes) / sizeof(sizes[0]);
  const fwdmeta_status_t status = fwdmeta_dispatcher_create(&config, dispatcher);
  return status != FWDMETA_OK ? status : fwdmeta_dispatcher_mark_captured(*dispatcher, NULL);
}

/* What this rank's scheduler came up with: decodes, a prompt on rank 1 in every other step, nothing on rank 0 in
 * step 2. */
static fwdmeta_rank_row_t make_row(int rank, int64_t step, uint64_t config_hash) {
  fwdmeta_rank_row_t row = {0};
  row.config = config_hash;
  row.step = step;
  row.max_mode = FWDMETA_GRAPH_FULL;
  if (rank == 0 && step == 2) return row; /* idle, and still takes part */
  row.num_reqs = 1 + (rank * 3 + step) % 8;
  row.num_tokens = row.num_reqs;
  row.query_len = 1;
  if (rank == 1 && step % 2 == 1) row.num_tokens += 11, row.query_len = 0;
  return row;
}

static void print_agreement(int rank, int64_t step, const fwdmeta_agreement_t *a, const int64_t *tokens, int n) {
  char line[256];
  int at = snprintf(line, sizeof(line), "rank %d: step %d is %s %d with tokens", rank, (int)step,
                    fwdmeta_graph_mode_name(a->mode), a->descriptor.num_tokens);
  for (int r = 0; r < n && at < (int)sizeof(line) - 24; ++r)
    at += snprintf(line + at, sizeof(line) - (size_t)at, " %lld", (long long)tokens[r]);
  puts(line);
  fflush(stdout);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, num_ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  const int stalled = argc > 1 ? atoi(argv[1]) : -1;

  struct gather gather = {num_ranks, {0}, NULL, MPI_REQUEST_NULL};
  gather.recv = malloc((size_t)num_ranks * sizeof(*gather.recv));
  int64_t *tokens = malloc((size_t)num_ranks * sizeof(*tokens));
  fwdmeta_dispatcher_t dispatcher = 0;
  fwdmeta_transport_t transport = 0;
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  fwdmeta_transport_config_t config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  config.num_ranks = num_ranks, config.rank = rank;
  config.gather = gather_rows, config.user = &gather;
  int failed = !gather.recv || !tokens || make_dispatcher(&dispatcher) ||
               fwdmeta_dispatcher_get_info(dispatcher, &info) || fwdmeta_transport_create(&config, &transport);

  for (int64_t step = 0; step < STEPS && !failed; ++step) {
    const fwdmeta_rank_row_t row = make_row(rank, step, info.config_hash);
    fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
    const int stall = stalled >= 0 && step == STALLED_STEP;
    for (int r = 0; stall && rank == stalled && r < num_ranks; ++r) /* "stalls" until all others say they timed out */
      if (r != rank) MPI_Recv(NULL, 0, MPI_BYTE, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const int64_t timeout_us = stall && rank != stalled ? SHORT_TIMEOUT_US : TIMEOUT_US;
    const fwdmeta_status_t status =
        fwdmeta_agree_through(transport, dispatcher, &row, 1, timeout_us, tokens, &agreement);
    if (stall) { /* an engine would end here, or make a new communicator without the rank */
      printf("rank %d: step %d ends in %s\n", rank, (int)step, fwdmeta_status_name(status));
      failed = status != (rank == stalled ? FWDMETA_OK : FWDMETA_TIMEOUT);
      if (!failed && rank != stalled) MPI_Send(NULL, 0, MPI_BYTE, stalled, 0, MPI_COMM_WORLD);
      break;
    }
    failed = status != FWDMETA_OK;
    if (!failed) print_agreement(rank, step, &agreement, tokens, num_ranks);
  }
  if (failed) fprintf(stderr, "rank %d: %s\n", rank, fwdmeta_last_error());

  fwdmeta_transport_destroy(transport);
  fwdmeta_dispatcher_destroy(dispatcher);
  if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Wait(&gather.pending, MPI_STATUS_IGNORE); /* the late rank has come by now */
  free(gather.recv);
  free(tokens);
  MPI_Finalize();
  return 0;
}

/* Steps of an engine through both halves of the library: agree, dispatch, build, push the context, run layers that read
 * it, pop. Two data-parallel ranks are two threads of this program. What they exchange goes through a table in memory,
 * by the callback that an engine would write over MPI (ranks_mpi.c) or its own network; nothing else knows of it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fwdmeta.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  NUM_RANKS = 2,
  SP_SIZE = 2, /* the MoE layer of a rank is spread over two sequence-parallel ones */
  NUM_STEPS = 3,
  MAX_SEQS = 8,
  MAX_TOKENS = 32,
  BLOCK_SIZE = 16,
  TABLE_WIDTH = 4,
  MAX_KEYS = 32,
  TIMEOUT_US = 30 * 1000 * 1000
};

/* Functions return 0, or 1 once they have said what failed. */
#define CHECK(call)                                                                               \
  do {                                                                                            \
    const fwdmeta_status_t status_ = (call);                                                      \
    if (status_ != FWDMETA_OK) {                                                                  \
      fprintf(stderr, "%s: %s\n%s\n", #call, fwdmeta_status_name(status_), fwdmeta_last_error()); \
      return 1;                                                                                   \
    }                                                                                             \
  } while (0)
#define EXPECT(condition)                                \
  do {                                                   \
    if (!(condition)) {                                  \
      fprintf(stderr, "expected that %s\n", #condition); \
      return 1;                                          \
    }                                                    \
  } while (0)

/* What the scheduler of each rank decided: E, D and N of its slots. Rank 1 takes a prompt of six tokens in step 1, and
 * has nothing to do in step 2. */
struct schedule {
  int64_t num_slots;
  int32_t e[MAX_SEQS], d[MAX_SEQS], n[MAX_SEQS];
};
static const struct schedule schedules[NUM_STEPS][NUM_RANKS] = {
    {{3, {0, 0, 0}, {10, 20, 30}, {1, 1, 1}}, {2, {0, 0}, {5, 40}, {1, 1}}},
    {{3, {0, 0, 0}, {11, 21, 31}, {1, 1, 1}}, {2, {6, 0}, {0, 41}, {6, 1}}},
    {{3, {0, 0, 0}, {12, 22, 32}, {1, 1, 1}}, {0, {0}, {0}, {0}}},
};

/* ---- the ranks' exchange */

struct meeting {
  pthread_mutex_t mutex;
  pthread_cond_t changed; /* goes by CLOCK_MONOTONIC, as deadlines do */
  int num_here;
  int64_t round;
  fwdmeta_rank_row_t rows[NUM_RANKS], gathered[NUM_RANKS];
};

struct rank {
  struct meeting *meeting;
  int64_t number;
  FILE *out; /* a text of its own, printed by main: threads take turns as they like */
  char *text;
  size_t text_size;
  int failed;
  int32_t table[MAX_SEQS][TABLE_WIDTH]; /* pages of each slot */
  uint64_t config_hash;
  fwdmeta_builder_t builder;
  fwdmeta_dispatcher_t dispatcher;
  fwdmeta_transport_t transport;
  fwdmeta_layers_t layers;
  fwdmeta_context_t context;
};

static fwdmeta_status_t gather_rows(const void *send, void *recv, size_t bytes, int64_t deadline_ns, void *user) {
  const struct rank *self = user;
  struct meeting *meeting = self->meeting;
  const struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};
  fwdmeta_status_t status = FWDMETA_OK;
  pthread_mutex_lock(&meeting->mutex);
  const int64_t round = meeting->round;
  memcpy(&meeting->rows[self->number], send, bytes);
  if (++meeting->num_here == NUM_RANKS) {
    memcpy(meeting->gathered, meeting->rows, sizeof(meeting->rows));
    meeting->num_here = 0;
    ++meeting->round;
    pthread_cond_broadcast(&meeting->changed);
  }
  while (meeting->round == round && status == FWDMETA_OK)
    if (pthread_cond_timedwait(&meeting->changed, &meeting->mutex, &deadline) == ETIMEDOUT) status = FWDMETA_TIMEOUT;
  if (meeting->round != round) {
    memcpy(recv, meeting->gathered, sizeof(meeting->gathered));
    status = FWDMETA_OK;
  } else {
    --meeting->num_here; /* this rank has left */
  }
  pthread_mutex_unlock(&meeting->mutex);
  return status;
}

/* ---- the model: layers are handed nothing, all they know of the step is in the current context */

struct layer {
  const char *name;
  int64_t index; /* in the registry */
};
static struct layer attention = {"layers.0.attn", 0}, mlp = {"layers.0.mlp", 1};

/* Stands for an attention kernel, which would have a fixed grid and end at the first -1 as this loop does. */
static int count_tiles(fwdmeta_meta_t meta, const char *batch_ids, int64_t *out) {
  fwdmeta_tensor_t slots = FWDMETA_TENSOR_INITIALIZER;
  CHECK(fwdmeta_meta_get(meta, batch_ids, &slots));
  for (*out = 0; *out < slots.shape[0] && ((const int32_t *)slots.data)[*out] >= 0;) ++*out;
  return 0;
}

static int run_attention(const struct layer *self, FILE *out) {
  fwdmeta_context_t context = 0;
  fwdmeta_attn_metadata_t metadata;
  fwdmeta_batch_descriptor_t graph;
  const int64_t *slot_mapping = NULL;
  int64_t num_tokens = 0, decoder_tiles = 0, encoder_tiles = 0;
  CHECK(fwdmeta_context_current(&context));
  CHECK(fwdmeta_context_get_attn_metadata(context, self->index, 0, &metadata));
  CHECK(fwdmeta_context_get_slot_mapping(context, self->index, 0, &slot_mapping, &num_tokens));
  CHECK(fwdmeta_context_get_descriptor(context, &graph));
  EXPECT(num_tokens == graph.num_tokens);
  if (count_tiles(metadata.meta, "decoder_batch_ids", &decoder_tiles)) return 1;
  if (count_tiles(metadata.meta, "encoder_batch_ids", &encoder_tiles)) return 1;
  fprintf(out, "    %s: decoder tiles %d, encoder tiles %d, writes slots", self->name, (int)decoder_tiles,
          (int)encoder_tiles);
  for (int64_t i = 0; i < num_tokens; ++i) fprintf(out, " %d", (int)slot_mapping[i]);
  fputc('\n', out);
  return 0;
}

/* The exchange between the experts of all ranks: whoever set the sizes, it finds them on the cursor. */
static int exchange_tokens(FILE *out) {
  fwdmeta_context_t context = 0;
  const int64_t *sizes = NULL;
  int64_t num_sizes = 0;
  CHECK(fwdmeta_context_current(&context));
  CHECK(fwdmeta_context_get_local_sizes(context, &sizes, &num_sizes));
  for (int64_t i = 0; i < num_sizes; ++i) fprintf(out, " %d", (int)sizes[i]);
  return 0;
}

static int run_mlp(const struct layer *self, FILE *out) {
  fwdmeta_context_t context = 0;
  fwdmeta_dp_metadata_t dp = FWDMETA_DP_METADATA_INITIALIZER;
  const uint8_t *is_padding = NULL;
  int64_t index = 0, num_tokens = 0, num_real = 0, sizes[NUM_RANKS * SP_SIZE];
  CHECK(fwdmeta_context_current(&context));
  CHECK(fwdmeta_context_next_moe_layer(context, &index)); /* the cursor: the model's next MoE layer */
  EXPECT(index == self->index);
  CHECK(fwdmeta_context_get_is_padding(context, &is_padding, &num_tokens));
  for (int64_t i = 0; i < num_tokens; ++i) num_real += !is_padding[i];
  CHECK(fwdmeta_context_get_dp_metadata(context, &dp));
  CHECK(fwdmeta_sp_sizes(dp.num_tokens, dp.dp_size, SP_SIZE, sizes));
  fprintf(out, "    %s: routes %d tokens, exchanges rows", self->name, (int)num_real);
  CHECK(fwdmeta_context_push_local_sizes(context, sizes, NUM_RANKS * SP_SIZE));
  const int failed = exchange_tokens(out);
  CHECK(fwdmeta_context_pop_local_sizes(context));
  fputc('\n', out);
  return failed;
}

/* ---- a step */

static int fill_context(const struct rank *self, const fwdmeta_dispatch_result_t *graph, const int64_t *tokens,
                        fwdmeta_meta_t meta) {
  fwdmeta_tensor_t slots = FWDMETA_TENSOR_INITIALIZER, padding = FWDMETA_TENSOR_INITIALIZER;
  CHECK(fwdmeta_meta_get(meta, "slot_mapping", &slots));
  CHECK(fwdmeta_meta_get(meta, "is_padding", &padding));
  fwdmeta_dp_metadata_args_t args = FWDMETA_DP_METADATA_ARGS_INITIALIZER;
  args.dp_size = NUM_RANKS, args.dp_rank = self->number, args.is_moe = 1;
  args.num_tokens = tokens[self->number], args.table = tokens;
  fwdmeta_dp_metadata_t dp = FWDMETA_DP_METADATA_INITIALIZER;
  CHECK(fwdmeta_dp_metadata_make(&args, &dp));

  const fwdmeta_attn_metadata_t metadata = {NULL, meta};
  const int64_t num_tokens = graph->descriptor.num_tokens;
  CHECK(fwdmeta_context_reset(self->context)); /* nothing of the step before is left */
  CHECK(fwdmeta_context_set_runtime_mode(self->context, graph->mode));
  CHECK(fwdmeta_context_set_descriptor(self->context, &graph->descriptor));
  CHECK(fwdmeta_context_set_dp_metadata(self->context, &dp));
  CHECK(fwdmeta_context_set_attn_metadata(self->context, FWDMETA_ALL_LAYERS, 0, &metadata));
  CHECK(fwdmeta_context_set_slot_mapping(self->context, FWDMETA_ALL_LAYERS, 0, slots.data, num_tokens));
  CHECK(fwdmeta_context_set_is_padding(self->context, padding.data, num_tokens));
  return 0;
}

static int run_step(struct rank *self, int64_t step) {
  const struct schedule *schedule = &schedules[step][self->number];
  fprintf(self->out, "rank %d, step %d\n", (int)self->number, (int)step);

  /* The facts of this rank. An idle one has them too, and takes part. */
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  CHECK(fwdmeta_dispatch_args_from_lengths(schedule->e, schedule->n, schedule->num_slots, 1, &args));
  fwdmeta_rank_row_t row = {0};
  row.num_tokens = args.num_tokens, row.num_reqs = args.num_reqs, row.query_len = (int32_t)args.query_len;
  row.max_mode = FWDMETA_GRAPH_FULL, row.config = self->config_hash, row.step = step;
  fprintf(self->out, "    facts: %d tokens of %d requests, query_len %d\n", (int)row.num_tokens, (int)row.num_reqs,
          (int)row.query_len);

  /* All ranks come to the same conclusion. */
  int64_t tokens[NUM_RANKS];
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  CHECK(fwdmeta_agree_through(self->transport, self->dispatcher, &row, 1, TIMEOUT_US, tokens, &agreement));
  fprintf(self->out, "    agreed: %s, tokens %d and %d\n", fwdmeta_graph_mode_name(agreement.mode), (int)tokens[0],
          (int)tokens[1]);
  if (agreement.skip) return 0;

  /* The graph of this rank. Its LoRA adapters, had it any, count from here on: ranks need not agree on them. */
  args.num_tokens = tokens[self->number], args.query_len = agreement.query_len;
  args.allowed_modes = 1 << agreement.mode;
  fwdmeta_dispatch_result_t graph = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  CHECK(fwdmeta_dispatch(self->dispatcher, &args, &graph));
  EXPECT(graph.mode == agreement.mode && graph.descriptor.num_tokens == tokens[self->number]);
  fprintf(self->out, "    dispatched: the %s graph of %d tokens, num_reqs %d\n", fwdmeta_graph_mode_name(graph.mode),
          (int)graph.descriptor.num_tokens, (int)graph.descriptor.num_reqs);

  /* The arrays of the step, padded to that graph. On a GPU this is one launch, and the host goes on. */
  const fwdmeta_rows_t table = {self->table, TABLE_WIDTH, TABLE_WIDTH, NULL};
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = schedule->num_slots, batch.num_padded_tokens = graph.descriptor.num_tokens;
  batch.seq_lens_encoder = schedule->e, batch.seq_lens_decoder = schedule->d, batch.seq_lens_this_time = schedule->n;
  batch.num_block_tables = 1, batch.block_tables = &table;
  fwdmeta_meta_t meta = 0;
  CHECK(fwdmeta_build(self->builder, &batch, &meta, NULL));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  CHECK(fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts)); /* from the mirror; only to print them here */
  EXPECT(counts.warnings == 0);
  fprintf(self->out, "    built: %d live slots, %d of %d tokens are real\n", counts.num_live, counts.num_tokens,
          counts.num_padded_tokens);

  /* The context: filled, frozen by push, read by the layers, gone with pop. */
  if (fill_context(self, &graph, tokens, meta)) return 1;
  CHECK(fwdmeta_context_push(self->context));
  const int failed = run_attention(&attention, self->out) || run_mlp(&mlp, self->out);
  CHECK(fwdmeta_context_pop(self->context));
  CHECK(fwdmeta_meta_destroy(meta));
  return failed;
}

/* ---- before the first step, and after the last */

/* Warms up and captures each graph with a dummy batch of its shape, the largest first. Without a block table no token
 * of a dummy has a slot, so it writes nothing into the cache. */
static int capture_graphs(struct rank *self) {
  fwdmeta_graph_key_t keys[MAX_KEYS];
  int64_t num_keys = 0;
  CHECK(fwdmeta_dispatcher_get_keys(self->dispatcher, keys, MAX_KEYS, &num_keys));
  for (int64_t k = 0; k < num_keys; ++k) {
    const fwdmeta_batch_descriptor_t *graph = &keys[k].descriptor;
    const int32_t most = graph->num_tokens < MAX_SEQS ? graph->num_tokens : MAX_SEQS;
    int32_t e[MAX_SEQS], d[MAX_SEQS], n[MAX_SEQS];
    fwdmeta_dummy_batch_t dummy = FWDMETA_DUMMY_BATCH_INITIALIZER;
    dummy.num_reqs = graph->num_reqs < 0 ? most : graph->num_reqs, dummy.num_tokens = graph->num_tokens;
    dummy.query_len = graph->uniform ? graph->num_tokens / graph->num_reqs : 0;
    dummy.seq_lens_encoder = e, dummy.seq_lens_decoder = d, dummy.seq_lens_this_time = n;
    CHECK(fwdmeta_make_dummy(&dummy));
    fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
    batch.memory_kind = FWDMETA_MEMORY_HOST, batch.batch_size = dummy.num_reqs;
    batch.seq_lens_encoder = e, batch.seq_lens_decoder = d, batch.seq_lens_this_time = n;
    CHECK(fwdmeta_build(self->builder, &batch, NULL, NULL));
    /* here the engine runs the model once and captures it under keys[k] */
    CHECK(fwdmeta_dispatcher_mark_captured(self->dispatcher, &keys[k]));
  }
  fprintf(self->out, "rank %d: %d graphs captured\n", (int)self->number, (int)num_keys);
  return 0;
}

static int set_up(struct rank *self) {
  for (int32_t slot = 0; slot < MAX_SEQS; ++slot)
    for (int32_t c = 0; c < TABLE_WIDTH; ++c) self->table[slot][c] = 1 + slot * TABLE_WIDTH + c;
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST; /* the layers of this program read the arrays; AUTO would put them on a GPU */
  config.max_batch_size = MAX_SEQS, config.max_num_tokens = MAX_TOKENS;
  config.max_model_len = BLOCK_SIZE * TABLE_WIDTH, config.block_size = BLOCK_SIZE;
  config.num_q_heads = 64, config.num_kv_heads = 8;
  CHECK(fwdmeta_builder_create(&config, &self->builder));

  static const int64_t sizes[] = {1, 2, 4, 8, 16, 32};
  fwdmeta_dispatcher_config_t graphs = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  graphs.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  graphs.max_num_seqs = MAX_SEQS, graphs.max_num_tokens = MAX_TOKENS;
  graphs.capture_sizes = sizes, graphs.num_capture_sizes = sizeof(sizes) / sizeof(sizes[0]);
  CHECK(fwdmeta_dispatcher_create(&graphs, &self->dispatcher));
  if (capture_graphs(self)) return 1;
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  CHECK(fwdmeta_dispatcher_get_info(self->dispatcher, &info));
  self->config_hash = info.config_hash; /* of the captured set too, so after the captures */

  fwdmeta_transport_config_t transport = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  transport.num_ranks = NUM_RANKS, transport.rank = self->number;
  transport.gather = gather_rows, transport.user = self;
  CHECK(fwdmeta_transport_create(&transport, &self->transport));

  CHECK(fwdmeta_layers_create(&self->layers));
  CHECK(fwdmeta_layers_add(self->layers, attention.name, &attention, 0, NULL));
  CHECK(fwdmeta_layers_add(self->layers, mlp.name, &mlp, 1, NULL));
  fwdmeta_context_config_t context = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  context.layers = self->layers;
  CHECK(fwdmeta_context_create(&context, &self->context));
  return 0;
}

static int tear_down(struct rank *self) {
  CHECK(fwdmeta_context_destroy(self->context));
  CHECK(fwdmeta_layers_destroy(self->layers));
  CHECK(fwdmeta_transport_destroy(self->transport));
  CHECK(fwdmeta_dispatcher_destroy(self->dispatcher));
  CHECK(fwdmeta_builder_destroy(self->builder));
  return 0;
}

static void *run_rank(void *user) {
  struct rank *self = user;
  self->failed = set_up(self);
  for (int64_t step = 0; step < NUM_STEPS && !self->failed; ++step) self->failed = run_step(self, step);
  self->failed |= tear_down(self);
  return NULL;
}

int main(void) {
  struct meeting meeting = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&meeting.changed, &monotonic);

  struct rank ranks[NUM_RANKS];
  pthread_t threads[NUM_RANKS];
  memset(ranks, 0, sizeof(ranks));
  for (int r = 0; r < NUM_RANKS; ++r) {
    ranks[r].meeting = &meeting, ranks[r].number = r;
    ranks[r].out = open_memstream(&ranks[r].text, &ranks[r].text_size);
    if (ranks[r].out == NULL || pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) {
      perror("rank");
      return 1;
    }
  }
  int failed = 0;
  for (int r = 0; r < NUM_RANKS; ++r) {
    pthread_join(threads[r], NULL);
    fclose(ranks[r].out);
    fputs(ranks[r].text, stdout);
    free(ranks[r].text);
    failed |= ranks[r].failed;
  }
  pthread_cond_destroy(&meeting.changed);
  pthread_condattr_destroy(&monotonic);
  return failed;
}

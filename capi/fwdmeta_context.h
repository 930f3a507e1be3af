/*
 * The forward context: which captured graph a step runs in, what data-parallel ranks agree on, how a step is cut into
 * microbatches, and what layers read while the model runs. Part of fwdmeta.h, which includes it; include that one. The
 * rules on errors, handles, structs, threads and capture at its top hold here too.
 *
 * All of this is host code: no call here needs a device, launches or synchronises anything, but a transport, which may
 * wait for other ranks, and a slicer, which builds. Arrays are host memory, but for a slicer's. int64 inputs past int32
 * are INVALID_ARGUMENT. Where an `out` array is filled up to a `capacity`, `count` always receives the full count, and
 * a capacity below it is CAPACITY_EXCEEDED with nothing written to the array; out = null with capacity 0 asks the
 * count. Input arrays are read during the call only, unless a line says that they are borrowed.
 */
#ifndef FWDMETA_CONTEXT_H
#define FWDMETA_CONTEXT_H

#include "fwdmeta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. 0 is the null handle. */
typedef uint64_t fwdmeta_dispatcher_t; /* captured graphs and which one a step runs in */
typedef uint64_t fwdmeta_transport_t;  /* how ranks gather their rows */
typedef uint64_t fwdmeta_slicer_t;     /* the builders of a step's slices */
typedef uint64_t fwdmeta_layers_t;     /* the layers of a model */
typedef uint64_t fwdmeta_context_t;    /* what layers read of a step */

/* Slices of a step at most. */
#define FWDMETA_MAX_SLICES 16

/* ---------------------------------------------------------------------------------------- modes and keys -- */

/* How a step runs: eagerly (NONE), with pieces between attention captured (PIECEWISE), or as one graph (FULL). The two
 * pairs hold a mode for batches that are uniform decode (bits 8 and up) and one for all others (the low byte). The
 * order NONE < PIECEWISE < FULL of the three runtime modes is meant. */
typedef int32_t fwdmeta_graph_mode_t;
enum {
  FWDMETA_GRAPH_NONE = 0,
  FWDMETA_GRAPH_PIECEWISE = 1,
  FWDMETA_GRAPH_FULL = 2,
  FWDMETA_GRAPH_FULL_DECODE_ONLY = 0x200,
  FWDMETA_GRAPH_FULL_AND_PIECEWISE = 0x201
};

/* The predicates of a mode. */
typedef struct fwdmeta_graph_mode_info {
  uint64_t struct_size;
  fwdmeta_graph_mode_t decode_mode; /* runtime mode of uniform decode batches */
  fwdmeta_graph_mode_t mixed_mode;  /* runtime mode of all other batches */
  fwdmeta_graph_mode_t max_mode;    /* the larger of the two */
  int32_t separate_routine;         /* 1: the mode is a pair, decode has keys of its own */
  int32_t has_full;                 /* 1: one of the two is FULL */
  int32_t has_piecewise;            /* 1: one of the two is PIECEWISE, so piecewise compilation is needed */
  int32_t is_runtime_mode;          /* 1: NONE, PIECEWISE or FULL itself */
  int32_t modes;                    /* bit (1 << m) for each runtime mode m that the mode contains */
} fwdmeta_graph_mode_info_t;
#define FWDMETA_GRAPH_MODE_INFO_INITIALIZER \
  { sizeof(fwdmeta_graph_mode_info_t), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Fills in the predicates. Any other number is INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_graph_mode_get_info(fwdmeta_graph_mode_t mode, fwdmeta_graph_mode_info_t *out);

/* "FULL_AND_PIECEWISE"; null for any other number. A static string. */
FWDMETA_API const char *fwdmeta_graph_mode_name(fwdmeta_graph_mode_t mode);

/* What the attention backends of a model can capture; the least of them counts. */
typedef int32_t fwdmeta_graph_support_t;
enum {
  FWDMETA_SUPPORT_NEVER = 0,
  FWDMETA_SUPPORT_UNIFORM_SINGLE_TOKEN_DECODE = 1,
  FWDMETA_SUPPORT_UNIFORM_BATCH = 2,
  FWDMETA_SUPPORT_ALWAYS = 3
};

/* Why a mode that was asked for became another. */
typedef int32_t fwdmeta_resolve_reason_t;
enum {
  FWDMETA_RESOLVE_AS_ASKED = 0,
  FWDMETA_RESOLVE_NO_FULL_MIXED = 1, /* mixed batches cannot be captured whole with this support */
  FWDMETA_RESOLVE_NO_FULL = 2,       /* support is NEVER */
  FWDMETA_RESOLVE_NO_MULTI_TOKEN = 3 /* more than one token a request needs UNIFORM_BATCH */
};

/* The mode that can be had: `query_len` is 1 + draft tokens (>= 1), `piecewise_available` (0 or 1) says that attention
 * is a split point of the compiled model. FULL for mixed batches with support NEVER is UNSUPPORTED. `out_reason` may be
 * null. Source of the rules: vLLM's resolve_cudagraph_mode_and_sizes. */
FWDMETA_API fwdmeta_status_t fwdmeta_graph_mode_resolve(fwdmeta_graph_mode_t mode, fwdmeta_graph_support_t support,
                                                        int64_t query_len, int32_t piecewise_available,
                                                        fwdmeta_graph_mode_t *out_mode,
                                                        fwdmeta_resolve_reason_t *out_reason);

/* The shape that a graph is captured for, as a key. Frozen: five int32 without padding. */
typedef struct fwdmeta_batch_descriptor {
  int32_t num_tokens;       /* padded; the real count where the mode is NONE */
  int32_t num_reqs;         /* padded; -1: any number */
  int32_t uniform;          /* 1: every request has num_tokens / num_reqs tokens */
  int32_t has_lora;         /* 1 where num_active_loras > 0 */
  int32_t num_active_loras; /* the captured case, not the real count */
} fwdmeta_batch_descriptor_t;

/* FNV-1a, 64 bits, over the five little-endian int32 in order. 0 for null. The same on every machine and version. */
FWDMETA_API uint64_t fwdmeta_batch_descriptor_hash(const fwdmeta_batch_descriptor_t *descriptor);
/* 1 where all five are equal, else 0; a null is equal to nothing. */
FWDMETA_API int32_t fwdmeta_batch_descriptor_equal(const fwdmeta_batch_descriptor_t *a,
                                                   const fwdmeta_batch_descriptor_t *b);

/* A captured graph: the runtime mode and the shape. Frozen. */
typedef struct fwdmeta_graph_key {
  fwdmeta_graph_mode_t mode;             /* PIECEWISE or FULL */
  fwdmeta_batch_descriptor_t descriptor; /* the shape */
} fwdmeta_graph_key_t;

/* -------------------------------------------------------------------------------------------- dispatcher -- */

/* What a dispatcher is created with. */
typedef struct fwdmeta_dispatcher_config {
  uint64_t struct_size;
  int32_t api_version;             /* FWDMETA_VERSION */
  fwdmeta_graph_mode_t mode;       /* the mode asked for; resolved at creation */
  fwdmeta_graph_support_t support; /* ALWAYS */
  int32_t piecewise_available;     /* 1 */
  int64_t max_num_seqs;            /* required, >= 1 */
  int64_t max_num_tokens;          /* required, >= 1 */
  const int64_t *capture_sizes;    /* [num_capture_sizes]; read during the call only */
  int64_t num_capture_sizes;       /* FWDMETA_DEFAULT: the default list; 0: no sizes */
  int64_t max_capture_size;        /* FWDMETA_DEFAULT: not stated */
  const int64_t *query_lens;       /* [num_query_lens]; 1 + draft tokens of uniform decode, one ladder each */
  int64_t num_query_lens;          /* FWDMETA_DEFAULT: one, 1 */
  int64_t max_loras;               /* 0 */
  int64_t max_full_reqs;           /* FWDMETA_DEFAULT: no bound; FULL keys with more requests are left out */
  int32_t round_piecewise;         /* 0; 1: PIECEWISE sizes are rounded up to multiples of the largest query_len */
  int32_t specialize_active_loras; /* 0; 1: cases at the powers of two */
} fwdmeta_dispatcher_config_t;
#define FWDMETA_DISPATCHER_CONFIG_INITIALIZER                                                                        \
  {                                                                                                                  \
    sizeof(fwdmeta_dispatcher_config_t), FWDMETA_VERSION, FWDMETA_GRAPH_NONE, FWDMETA_SUPPORT_ALWAYS, 1, 0, 0, NULL, \
        FWDMETA_DEFAULT, FWDMETA_DEFAULT, NULL, FWDMETA_DEFAULT, 0, FWDMETA_DEFAULT, 0, 0                            \
  }

/* Derives sizes and keys from the configuration. Allocates; dispatch does not. The caller owns the handle. Keys become
 * dispatchable by fwdmeta_dispatcher_mark_captured. INVALID_ARGUMENT, UNSUPPORTED (as mode_resolve), OUT_OF_MEMORY. A
 * dropped size is logged as a warning. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_create(const fwdmeta_dispatcher_config_t *config,
                                                       fwdmeta_dispatcher_t *out);
/* OK for 0. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_destroy(fwdmeta_dispatcher_t dispatcher);

/* What came of a dispatcher's configuration. */
typedef struct fwdmeta_dispatcher_info {
  uint64_t struct_size;
  fwdmeta_graph_mode_t resolved_mode;      /* what fwdmeta_graph_mode_resolve gave */
  fwdmeta_resolve_reason_t resolve_reason; /* and why */
  int64_t num_capture_sizes;               /* of fwdmeta_dispatcher_get_sizes */
  int64_t num_piecewise_keys;              /* of fwdmeta_dispatcher_get_keys */
  int64_t num_full_keys;                   /* likewise */
  int64_t num_captured;                    /* keys that are marked */
  uint64_t config_hash; /* of the resolved configuration and the captured set: `config` of a rank's row */
} fwdmeta_dispatcher_info_t;
#define FWDMETA_DISPATCHER_INFO_INITIALIZER \
  { sizeof(fwdmeta_dispatcher_info_t), 0, 0, 0, 0, 0, 0, 0 }
/* Any thread, concurrently. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_get_info(fwdmeta_dispatcher_t dispatcher,
                                                         fwdmeta_dispatcher_info_t *out);

/* The capture sizes in tokens, int64, ascending. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_get_sizes(fwdmeta_dispatcher_t dispatcher, int64_t *out,
                                                          int64_t capacity, int64_t *count);

/* All keys in the order to capture them: PIECEWISE, then FULL, each descending by (num_tokens, num_active_loras,
 * num_reqs), so that smaller graphs reuse the memory of larger ones. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_get_keys(fwdmeta_dispatcher_t dispatcher, fwdmeta_graph_key_t *out,
                                                         int64_t capacity, int64_t *count);

/* Makes a key dispatchable, or all with key = null. NOT_FOUND for a key that the dispatcher has not; marking twice is
 * OK. Any thread. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatcher_mark_captured(fwdmeta_dispatcher_t dispatcher,
                                                              const fwdmeta_graph_key_t *key);

/* Bits of allowed_modes: 1 << the runtime mode. */
enum { FWDMETA_ALLOW_NONE = 1, FWDMETA_ALLOW_PIECEWISE = 2, FWDMETA_ALLOW_FULL = 4, FWDMETA_ALLOW_ALL = 7 };

/* A step to find a graph for. */
typedef struct fwdmeta_dispatch_args {
  uint64_t struct_size;
  int64_t num_tokens;       /* real tokens of the step */
  int64_t num_reqs;         /* live requests */
  int64_t query_len;        /* tokens of every request of a uniform decode batch; 0: not one. Stated, never guessed */
  int64_t num_active_loras; /* 0 */
  int32_t allowed_modes;    /* FWDMETA_ALLOW_* bits; ALL. 0 is INVALID_ARGUMENT */
  int32_t reserved;         /* 0 */
} fwdmeta_dispatch_args_t;
#define FWDMETA_DISPATCH_ARGS_INITIALIZER \
  { sizeof(fwdmeta_dispatch_args_t), 0, 0, 0, 0, FWDMETA_ALLOW_ALL, 0 }

/* Why a step runs in no FULL graph, or in none. */
typedef int32_t fwdmeta_dispatch_reason_t;
enum {
  FWDMETA_DISPATCH_OK = 0,
  FWDMETA_DISPATCH_MODE_NONE = 1,         /* the resolved mode is NONE */
  FWDMETA_DISPATCH_ZERO_TOKENS = 2,       /* the step has no token */
  FWDMETA_DISPATCH_ABOVE_LARGEST = 3,     /* more tokens than the largest PIECEWISE size */
  FWDMETA_DISPATCH_NOT_UNIFORM = 4,       /* FULL is for uniform decode, and query_len is 0 */
  FWDMETA_DISPATCH_NO_FULL_SIZE = 5,      /* no FULL key is large enough, or none has this query_len */
  FWDMETA_DISPATCH_LORA_NOT_CAPTURED = 6, /* more active adapters than the largest case */
  FWDMETA_DISPATCH_NOT_ALLOWED = 7,       /* allowed_modes leaves FULL out */
  FWDMETA_DISPATCH_NOT_CAPTURED = 8       /* a key fits, and it has not been marked */
};
/* "ABOVE_LARGEST"; "OK" for 0; null for any other number. A static string. */
FWDMETA_API const char *fwdmeta_dispatch_reason_name(fwdmeta_dispatch_reason_t reason);

/* The graph of a step. */
typedef struct fwdmeta_dispatch_result {
  uint64_t struct_size;
  fwdmeta_graph_mode_t mode;        /* NONE, PIECEWISE or FULL */
  fwdmeta_dispatch_reason_t reason; /* OK, or why no FULL graph answers though the mode has FULL, or why none does */
  fwdmeta_batch_descriptor_t descriptor; /* of the graph; with NONE the real tokens, num_reqs -1, the rest 0 */
  int32_t reserved;                      /* 0 */
} fwdmeta_dispatch_result_t;
#define FWDMETA_DISPATCH_RESULT_INITIALIZER \
  { sizeof(fwdmeta_dispatch_result_t), 0, 0, {0, 0, 0, 0, 0}, 0 }

/* The captured graph of a step: the smallest FULL key of the ladder of query_len, else the smallest PIECEWISE size,
 * else NONE with the real count. Allocates nothing. NO_GRAPH where NONE would be the answer and is not allowed.
 * Any thread, concurrently. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatch(fwdmeta_dispatcher_t dispatcher, const fwdmeta_dispatch_args_t *args,
                                              fwdmeta_dispatch_result_t *out);

/* Fills num_tokens, num_reqs and query_len of `out` from host lengths int32 [batch_size], and leaves the rest. By role:
 * query_len is `query_len` (>= 1) where every live slot is a decode slot with N = query_len, else 0 (also with no live
 * slot). INVALID_BATCH as for a build. */
FWDMETA_API fwdmeta_status_t fwdmeta_dispatch_args_from_lengths(const int32_t *seq_lens_encoder,
                                                                const int32_t *seq_lens_this_time, int64_t batch_size,
                                                                int64_t query_len, fwdmeta_dispatch_args_t *out);

/* A batch to warm up or capture with, in the caller's host arrays, each of which may be null. */
typedef struct fwdmeta_dummy_batch {
  uint64_t struct_size;
  int64_t num_reqs;            /* 1..num_tokens */
  int64_t num_tokens;          /* FWDMETA_DEFAULT: num_reqs * query_len */
  int64_t query_len;           /* 0: prefills (E = N); >= 1: decodes (E = 0) of at most so many tokens each */
  int32_t *seq_lens_encoder;   /* int32 [num_reqs] */
  int32_t *seq_lens_decoder;   /* int32 [num_reqs]; all 0 */
  int32_t *seq_lens_this_time; /* int32 [num_reqs]; floor or ceil of the mean, non-decreasing; also the seq_lens */
  int64_t *slot_mapping;       /* int64 [num_tokens]; all -1 */
  uint8_t *is_padding;         /* uint8 [num_tokens]; all 1 */
} fwdmeta_dummy_batch_t;
#define FWDMETA_DUMMY_BATCH_INITIALIZER \
  { sizeof(fwdmeta_dummy_batch_t), 0, FWDMETA_DEFAULT, 0, NULL, NULL, NULL, NULL, NULL }
/* Fills the arrays. INVALID_ARGUMENT for counts that do not fit together. Any thread. */
FWDMETA_API fwdmeta_status_t fwdmeta_make_dummy(const fwdmeta_dummy_batch_t *dummy);

/* ------------------------------------------------------------------------------------------------- ranks -- */

/* What fwdmeta_dp_metadata_make is made from. */
typedef struct fwdmeta_dp_metadata_args {
  uint64_t struct_size;
  int64_t dp_size;               /* >= 1; 1 is INVALID_ARGUMENT without sequence_parallel_moe */
  int64_t dp_rank;               /* [0, dp_size) */
  int64_t num_tokens;            /* of this rank; must equal table[dp_rank] */
  const int64_t *table;          /* int64 [dp_size]; tokens of each rank. Borrowed as long as the metadata is used */
  int32_t sequence_parallel_moe; /* 0 or 1 */
  int32_t is_moe;                /* 1, 0 (INVALID_ARGUMENT) or -1 unknown */
} fwdmeta_dp_metadata_args_t;
#define FWDMETA_DP_METADATA_ARGS_INITIALIZER \
  { sizeof(fwdmeta_dp_metadata_args_t), 0, 0, 0, NULL, 0, -1 }

/* What layers read of the data-parallel ranks. */
typedef struct fwdmeta_dp_metadata {
  uint64_t struct_size;
  int64_t dp_size;           /* ranks */
  int64_t dp_rank;           /* this one */
  int64_t max_tokens;        /* over the ranks: what graphs are dispatched by */
  int64_t sum_tokens;        /* over the ranks */
  const int64_t *num_tokens; /* int64 [dp_size], borrowed */
} fwdmeta_dp_metadata_t;
#define FWDMETA_DP_METADATA_INITIALIZER \
  { sizeof(fwdmeta_dp_metadata_t), 0, 0, 0, 0, NULL }
/* Fills in `out`, which borrows the table. INVALID_ARGUMENT as the arguments say, with both numbers where they differ.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_dp_metadata_make(const fwdmeta_dp_metadata_args_t *args,
                                                      fwdmeta_dp_metadata_t *out);

/* Sequence-parallel sizes: ceil(n / sp_size), repeated sp_size times, rank-major. `out` int64 [num_ranks * sp_size].
 * Here and below an empty list, a negative count, and a size, chunk or rank count below 1 are INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_sp_sizes(const int64_t *num_tokens, int64_t num_ranks, int64_t sp_size,
                                              int64_t *out);
/* Inclusive cumulative sums without a leading 0. `out` int64 [count]. */
FWDMETA_API fwdmeta_status_t fwdmeta_cu_sizes(const int64_t *sizes, int64_t count, int64_t *out);
/* The rows of each size in chunk `index` of at most max_chunk: min(max_chunk, s - max_chunk * index), and 1 where
 * nothing is left, so that all ranks stay in step. `out` int64 [count]. */
FWDMETA_API fwdmeta_status_t fwdmeta_chunk_sizes(const int64_t *sizes, int64_t count, int64_t max_chunk, int64_t index,
                                                 int64_t *out);
/* max(1, ceil(largest size / max_chunk)). */
FWDMETA_API fwdmeta_status_t fwdmeta_num_chunks(const int64_t *sizes, int64_t count, int64_t max_chunk, int64_t *out);
/* num_tokens over `num_ranks` shards. Uneven (padded = 0): n / R + (rank < n mod R). Padded (1): ceil(n / R) each, of
 * which the first `live` are real. sizes, starts, live: int64 [num_ranks], each may be null; `mask`, uint8 [R * ceil(n
 * / R)] or null, is 1 for real rows and 0 for padding (padded = 1 only). */
FWDMETA_API fwdmeta_status_t fwdmeta_shard_sizes(int64_t num_tokens, int64_t num_ranks, int32_t padded, int64_t *sizes,
                                                 int64_t *starts, int64_t *live, uint8_t *mask);

/* What each rank tells the others: unpadded facts. Frozen, 64 bytes, sent as they are. */
typedef struct fwdmeta_rank_row {
  int64_t num_tokens;            /* 0: an idle rank, which takes part */
  int64_t num_reqs;              /* live requests */
  uint64_t config;               /* config_hash of the rank's dispatcher */
  int64_t step;                  /* any number that all ranks count alike */
  fwdmeta_graph_mode_t max_mode; /* NONE: forced eager; PIECEWISE; FULL */
  int32_t query_len;             /* as for dispatch */
  int32_t wants_slices;          /* 0 or 1 */
  int32_t reserved[5];           /* 0 */
} fwdmeta_rank_row_t;

/* What the ranks run. */
typedef struct fwdmeta_agreement {
  uint64_t struct_size;
  fwdmeta_graph_mode_t mode;             /* NONE, PIECEWISE or FULL */
  fwdmeta_dispatch_reason_t reason;      /* as of a dispatch */
  int32_t query_len;                     /* the common one; 0: not uniform decode */
  int32_t num_reqs;                      /* the descriptor's */
  int32_t sliced;                        /* 1: all ranks run num_slices microbatches */
  int32_t skip;                          /* 1: no rank has a token */
  int32_t mismatch_rank;                 /* with RANK_MISMATCH: the lowest rank that differs from rank 0; else -1 */
  fwdmeta_batch_descriptor_t descriptor; /* of the graph */
} fwdmeta_agreement_t;
#define FWDMETA_AGREEMENT_INITIALIZER                                    \
  {                                                                      \
    sizeof(fwdmeta_agreement_t), 0, 0, 0, 0, 0, 0, -1, { 0, 0, 0, 0, 0 } \
  }

/* What all ranks conclude from the same table of rows: a pure function, the same on each. `num_tokens`, int64
 * [num_ranks] or null, receives the tokens that each rank runs. num_slices >= 1 (1: never sliced). RANK_MISMATCH where
 * config or step differ; `out` then has mismatch_rank. Allocates nothing. */
FWDMETA_API fwdmeta_status_t fwdmeta_agree(fwdmeta_dispatcher_t dispatcher, const fwdmeta_rank_row_t *rows,
                                           int64_t num_ranks, int64_t num_slices, int64_t *num_tokens,
                                           fwdmeta_agreement_t *out);

/* --------------------------------------------------------------------------------------------- transports -- */

/* Gathers `bytes` bytes of every rank: recv[r * bytes] is rank r's, the caller's own among them. `deadline_ns` is a
 * time of CLOCK_MONOTONIC in ns after which it must return TIMEOUT; INT64_MAX: none. Called with no lock held, on the
 * caller's thread; must not throw. Its status is the answer of fwdmeta_agree_through. */
typedef fwdmeta_status_t (*fwdmeta_gather_callback_t)(const void *send, void *recv, size_t bytes, int64_t deadline_ns,
                                                      void *user);

/* Either `gather` or `nccl_comm` is set. */
typedef struct fwdmeta_transport_config {
  uint64_t struct_size;
  int64_t num_ranks;                /* >= 1 */
  int64_t rank;                     /* [0, num_ranks) */
  fwdmeta_gather_callback_t gather; /* the engine's collective */
  void *user;                       /* handed to it */
  void *nccl_comm;                  /* the engine's ncclComm_t, borrowed until the transport's end */
  fwdmeta_stream_t stream;          /* of the NCCL calls, likewise */
  const char *plugin_path; /* libfwdmeta_nccl.so.1, an absolute path. Null: the environment's FWDMETA_PLUGIN_PATH, an
                            * absolute path too, else the file of that name beside libfwdmeta; never the working
                            * directory or the loader's search path */
} fwdmeta_transport_config_t;
#define FWDMETA_TRANSPORT_CONFIG_INITIALIZER \
  { sizeof(fwdmeta_transport_config_t), 0, 0, NULL, NULL, NULL, NULL, NULL }

/* Allocates buffers for num_ranks rows. With nccl_comm it loads the plug-in, which is unloaded with the last transport
 * that uses it: UNAVAILABLE with the loader's text where that fails, UNSUPPORTED for a plug-in of another version,
 * NOT_READY while a non-blocking communicator is still being made, INVALID_ARGUMENT for one of other ranks. May block,
 * but waits for no rank. */
FWDMETA_API fwdmeta_status_t fwdmeta_transport_create(const fwdmeta_transport_config_t *config,
                                                      fwdmeta_transport_t *out);
/* OK for 0. BUSY while a gather of it runs. */
FWDMETA_API fwdmeta_status_t fwdmeta_transport_destroy(fwdmeta_transport_t transport);

/* Gathers the rows of all ranks and agrees. Every rank calls it for every step, idle ones too. timeout_us < 0: no
 * deadline; a peer that stalls is TIMEOUT, after which an NCCL communicator has been aborted (the engine must not use,
 * abort or destroy it) and the transport answers UNAVAILABLE. It answers so after any other failure of NCCL or CUDA in
 * a gather too, then with the communicator still the engine's to abort. An own row that comes back changed is
 * INVALID_ARGUMENT. NOT_CAPTURABLE with NCCL. One thread at a time per transport (BUSY). Blocks. */
FWDMETA_API fwdmeta_status_t fwdmeta_agree_through(fwdmeta_transport_t transport, fwdmeta_dispatcher_t dispatcher,
                                                   const fwdmeta_rank_row_t *row, int64_t num_slices,
                                                   int64_t timeout_us, int64_t *num_tokens, fwdmeta_agreement_t *out);

/* ---------------------------------------------------------------------------------------------- slices -- */

/* A batch to cut, as requests one behind another. */
typedef struct fwdmeta_slice_args {
  uint64_t struct_size;
  const int32_t *query_lens; /* int32 [num_reqs]; N */
  const int32_t *seq_lens;   /* int32 [num_reqs]; D + N. A negative length or seq_len < query_len is INVALID_BATCH */
  int64_t num_reqs;          /* R >= 0 */
  int64_t num_padded_tokens; /* >= the sum n of query_lens; FWDMETA_DEFAULT: n */
  int64_t num_padded_reqs;   /* >= R; FWDMETA_DEFAULT: R */
  int64_t num_slices;        /* 1..16 */
  int64_t split;             /* tokens a slice, >= 1; FWDMETA_DEFAULT: num_padded_tokens / num_slices */
} fwdmeta_slice_args_t;
#define FWDMETA_SLICE_ARGS_INITIALIZER \
  { sizeof(fwdmeta_slice_args_t), NULL, NULL, 0, FWDMETA_DEFAULT, FWDMETA_DEFAULT, 1, FWDMETA_DEFAULT }

/* One microbatch; ranges are half-open. The last slice's ends are the padded ones. Frozen. */
typedef struct fwdmeta_slice {
  int32_t first_req, end_req;     /* requests that have a token in it */
  int32_t first_token, end_token; /* on the token axis */
  int32_t num_tokens;             /* real ones */
  int32_t empty;                  /* 1: no real token, whatever the padding */
} fwdmeta_slice_t;

/* With s = `split` and n the sum of query_lens, slice j has the tokens [min(j * s, n), min((j + 1) * s, n)), and the
 * last all from min(j * s, n) on. `out` [num_slices]. An empty slice is an answer, not an error. */
FWDMETA_API fwdmeta_status_t fwdmeta_plan_slices(const fwdmeta_slice_args_t *args, fwdmeta_slice_t *out);

/* The lengths of one planned slice: query_start_loc int32 [end_req - first_req + 1] from 0, padded requests repeating
 * the total; seq_lens int32 [end_req - first_req], the request's given length less its tokens past the slice's end, 0
 * for padded requests; computed int32 of the same shape: seq_len less the tokens of the slice. Each may be null. A
 * slice that these arguments do not give is INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_slice_lengths(const fwdmeta_slice_args_t *args, const fwdmeta_slice_t *slice,
                                                   int32_t *query_start_loc, int32_t *seq_lens, int32_t *computed);

/* Whether the slices of a step may run side by side. */
typedef struct fwdmeta_slice_conflict {
  uint64_t struct_size;
  int32_t conflict;       /* 1: a slice reads a page that another slice of the step writes */
  int32_t cross_request;  /* 1: and for some such page the reader and the writer are different requests */
  int32_t reader, writer; /* slices: of the lowest (reader, writer, page), cross-request ones first; -1: none */
  int32_t page;           /* of the block table; -1 */
  int32_t reserved;       /* 0 */
} fwdmeta_slice_conflict_t;
#define FWDMETA_SLICE_CONFLICT_INITIALIZER \
  { sizeof(fwdmeta_slice_conflict_t), 0, 0, -1, -1, -1, 0 }
/* `slices`: all of the plan. `block_table`: host rows of int32 pages of `block_size` positions, one row a request;
 * negative ones, and those outside the row, are no pages. A slice reads the pages of the positions before its own
 * tokens, and writes those of its tokens. Allocates. */
FWDMETA_API fwdmeta_status_t fwdmeta_slices_conflict(const fwdmeta_slice_args_t *args, const fwdmeta_slice_t *slices,
                                                     const fwdmeta_rows_t *block_table, int64_t block_size,
                                                     fwdmeta_slice_conflict_t *out);

/*
 * A slicer builds the metadata of the slices of a batch: every slice is a batch of its own over the same slots, in
 * arrays of its own at addresses that never change. A slot has N' = its tokens in the slice, E' = N' where it is a
 * prefill, else 0, and D' = D + its tokens in earlier slices; a prefill's output row stands only in the slice with its
 * last token. Block tables, input_ids and draft_tokens are the batch's own rows.
 *
 * Creation makes one builder per slice, all of `config`, and may block. Each of them asks the allocators for what
 * fwdmeta_get_capacities says and for room for its slice's lengths; with a = 4 * max_batch_size, rounded up to 256
 * bytes: on the CUDA backend 4a + 256 bytes of device memory (5a + 256 with max_batch_size above single_launch_slots)
 * and (depth + 4)a + 256 of pinned memory, on the host backend 4a + 256 of host memory. Nothing is allocated later. 1
 * <= max_slices <= FWDMETA_MAX_SLICES. Fails as fwdmeta_builder_create.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_slicer_create(const fwdmeta_config_t *config, int64_t max_slices,
                                                   fwdmeta_slicer_t *out);
/* As fwdmeta_builder_destroy; ends the handles of the slices' builders too. */
FWDMETA_API fwdmeta_status_t fwdmeta_slicer_destroy(fwdmeta_slicer_t slicer);
/* The builder of slice 0..max_slices-1 (OUT_OF_RANGE past them), for its counts, tensors, readers, info and reset, and
 * for fwdmeta_advance of the whole batch's lengths, by any one of them. It is the slicer's: fwdmeta_build and
 * fwdmeta_builder_destroy are INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_slicer_get_builder(fwdmeta_slicer_t slicer, int64_t slice, fwdmeta_builder_t *out);
/*
 * Enqueues one build a slice, with device lengths behind one kernel that cuts them (1 + num_slices kernels, up to
 * single_launch_slots), and returns: no copy, no sync, no allocation. With s = `split` and n the sum of N, slice j has
 * the tokens [min(j * s, n), min((j + 1) * s, n)), and the last all from min(j * s, n) on. s >= 1; FWDMETA_DEFAULT:
 * num_padded_tokens / num_slices, or n / num_slices where num_padded_tokens is -1, rounded down, and with 0 the last
 * slice has them all. n of device lengths is not known to the host: there one of the two has to be stated
 * (INVALID_ARGUMENT). 1 <= num_slices <= max_slices (INVALID_ARGUMENT); the builders of further slices stay as they
 * are. `metas` [num_slices] (may be null) receives views that the caller owns.
 *
 * num_padded_tokens of a slice is the number of its tokens, to which the last adds the batch's padding. The lengths of
 * a slice follow from its arrays: N' from cu_seqlens_q, D' + N' from seq_lens_kv, the role from mask_encoder_batch.
 * Errors in the numbers are those of the whole batch: of host lengths they are returned and nothing is enqueued, of
 * device lengths every slice's counts report them, and every slice's arrays are those of a step without a live slot.
 *
 * All slices write the set of the same number: batch->generation, or the next of the slicer's rotation. Threads,
 * streams, readers, capture and errors as fwdmeta_build; a slice that refuses refuses the call, and nothing is
 * enqueued. Where CUDA itself refuses a launch (CUDA_ERROR), slices before it may have been built.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_build_slices(fwdmeta_slicer_t slicer, const fwdmeta_batch_t *batch,
                                                  int64_t num_slices, int64_t split, fwdmeta_meta_t *metas);

/* --------------------------------------------------------------------------------------- forward context -- */

/* The layers of a model, in the order of registration; made once. The caller owns the handle. One thread at a time may
 * add; looking up is free to all. */
FWDMETA_API fwdmeta_status_t fwdmeta_layers_create(fwdmeta_layers_t *out);
/* OK for 0. Contexts made from it keep what they need. */
FWDMETA_API fwdmeta_status_t fwdmeta_layers_destroy(fwdmeta_layers_t layers);
/* Registers a layer: a name (1..255 bytes, copied) and a borrowed pointer; `is_moe` puts it on the MoE list too.
 * `out_index` (may be null) receives its number, 0, 1, ... ALREADY_EXISTS for a known name, INVALID_ARGUMENT once a
 * context has been made from it. */
FWDMETA_API fwdmeta_status_t fwdmeta_layers_add(fwdmeta_layers_t layers, const char *name, void *layer, int32_t is_moe,
                                                int64_t *out_index);
/* NOT_FOUND for an unknown name; OUT_OF_RANGE for an index past the end. Names live as long as the registry and the
 * contexts made from it. Of `get` and `count` either output may be null. */
FWDMETA_API fwdmeta_status_t fwdmeta_layers_find(fwdmeta_layers_t layers, const char *name, int64_t *out_index);
FWDMETA_API fwdmeta_status_t fwdmeta_layers_get(fwdmeta_layers_t layers, int64_t index, const char **out_name,
                                                void **out_layer);
FWDMETA_API fwdmeta_status_t fwdmeta_layers_count(fwdmeta_layers_t layers, int64_t *out_count, int64_t *out_num_moe);

/* How much a context has room for. */
typedef struct fwdmeta_context_config {
  uint64_t struct_size;
  int32_t api_version;     /* FWDMETA_VERSION */
  int32_t reserved;        /* 0 */
  fwdmeta_layers_t layers; /* 0: none; frozen by this call */
  int64_t max_slices;      /* 1..16; 1 */
  int64_t max_values;      /* 0..1024; 16; additional values */
} fwdmeta_context_config_t;
#define FWDMETA_CONTEXT_CONFIG_INITIALIZER \
  { sizeof(fwdmeta_context_config_t), FWDMETA_VERSION, 0, 0, 1, 16 }

/*
 * A context is built by the set calls, frozen and made the thread's current one by push, and read until pop. All
 * memory is allocated here: no later call on it allocates. States: building (after create and reset), pushed, popped.
 * Set calls outside of building are INVALID_ARGUMENT while pushed and EXPIRED after pop; get calls are EXPIRED after
 * pop. reset makes it empty and building again; a popped context may also be pushed again as it is. What was never
 * set is NOT_SET. Pointers handed in are borrowed until pop. One thread at a time may change a context; reading a
 * pushed one is free to all.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_context_create(const fwdmeta_context_config_t *config, fwdmeta_context_t *out);
/* OK for 0. BUSY while pushed. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_destroy(fwdmeta_context_t context);
/* BUSY while pushed. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_reset(fwdmeta_context_t context);

/* In place of a layer's index: all of them. */
#define FWDMETA_ALL_LAYERS (-1)
/* The attention metadata of a layer in a slice (0 where the step is not sliced): a borrowed pointer, a ForwardMeta, or
 * both. The meta is a number that is kept and handed out again; whether it is alive shows where it is used. Frozen. */
typedef struct fwdmeta_attn_metadata {
  const void *pointer; /* the engine's, or null */
  fwdmeta_meta_t meta; /* 0: none */
} fwdmeta_attn_metadata_t;
/* layer: an index, or FWDMETA_ALL_LAYERS, which sets it for each of them: the later of two settings counts. Getting
 * FWDMETA_ALL_LAYERS is what was set under it. slice: 0..max_slices-1. Past either end: OUT_OF_RANGE. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_attn_metadata(fwdmeta_context_t context, int64_t layer, int64_t slice,
                                                               const fwdmeta_attn_metadata_t *metadata);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_attn_metadata(fwdmeta_context_t context, int64_t layer, int64_t slice,
                                                               fwdmeta_attn_metadata_t *out);
/* int64 slots of `count` tokens, on whatever memory the engine means. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_slot_mapping(fwdmeta_context_t context, int64_t layer, int64_t slice,
                                                              const int64_t *slot_mapping, int64_t count);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_slot_mapping(fwdmeta_context_t context, int64_t layer, int64_t slice,
                                                              const int64_t **out, int64_t *out_count);
/* Copied; its table of tokens stays borrowed. INVALID_ARGUMENT for a rank outside of dp_size or a null table. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_dp_metadata(fwdmeta_context_t context,
                                                             const fwdmeta_dp_metadata_t *dp_metadata);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_dp_metadata(fwdmeta_context_t context, fwdmeta_dp_metadata_t *out);
/* NONE, PIECEWISE or FULL; any other is INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_runtime_mode(fwdmeta_context_t context, fwdmeta_graph_mode_t mode);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_runtime_mode(fwdmeta_context_t context, fwdmeta_graph_mode_t *out);
/* The graph's shape, copied. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_descriptor(fwdmeta_context_t context,
                                                            const fwdmeta_batch_descriptor_t *descriptor);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_descriptor(fwdmeta_context_t context, fwdmeta_batch_descriptor_t *out);
/* The microbatches, copied; count 1..max_slices. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_slices(fwdmeta_context_t context, const fwdmeta_slice_t *slices,
                                                        int64_t count);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_slices(fwdmeta_context_t context, fwdmeta_slice_t *out,
                                                        int64_t capacity, int64_t *count);
/* uint8 [count], 1 for padding. Unset means unknown, not "no padding". */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_is_padding(fwdmeta_context_t context, const uint8_t *is_padding,
                                                            int64_t count);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_is_padding(fwdmeta_context_t context, const uint8_t **out,
                                                            int64_t *out_count);
/* Whether layers run uncompiled: 0 or 1; any other is INVALID_ARGUMENT. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_skip_compiled(fwdmeta_context_t context, int32_t skip);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_skip_compiled(fwdmeta_context_t context, int32_t *out);

/* Additional values by name (1..63 bytes, copied), a pointer, an int64 or a double; setting again replaces. Getting an
 * unknown name is NOT_FOUND, one of another kind INVALID_ARGUMENT. More than max_values: CAPACITY_EXCEEDED. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_pointer(fwdmeta_context_t context, const char *name, void *value);
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_int64(fwdmeta_context_t context, const char *name, int64_t value);
FWDMETA_API fwdmeta_status_t fwdmeta_context_set_double(fwdmeta_context_t context, const char *name, double value);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_pointer(fwdmeta_context_t context, const char *name, void **out);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_int64(fwdmeta_context_t context, const char *name, int64_t *out);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_double(fwdmeta_context_t context, const char *name, double *out);

/* The registry through the context: as fwdmeta_layers_find and fwdmeta_layers_get; NOT_SET without one. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_find_layer(fwdmeta_context_t context, const char *name,
                                                        int64_t *out_index);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_layer(fwdmeta_context_t context, int64_t index, const char **out_name,
                                                       void **out_layer);

/* The stack of the calling thread. A context is on one stack at a time (ALREADY_EXISTS), and is popped on the thread
 * that pushed it, the top one first and while it is the current one (INVALID_ARGUMENT); popping what is not pushed is
 * NOT_SET. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_push(fwdmeta_context_t context);
FWDMETA_API fwdmeta_status_t fwdmeta_context_pop(fwdmeta_context_t context);
/* The current context of the thread; NOT_SET and 0 where there is none. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_current(fwdmeta_context_t *out);
/* Makes a pushed context (of any thread), or with 0 none, the current one of this thread, and hands out the former one
 * (`out_previous` may be null), to be brought back by another override. Neither pushes nor pops. INVALID_ARGUMENT for
 * one that is being built, EXPIRED after its pop. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_override(fwdmeta_context_t context, fwdmeta_context_t *out_previous);

/* The cursor: what moves while the model runs. Push sets it to its start.
 * next_moe_layer: the index of the next layer of the MoE list; OUT_OF_RANGE at its end, NOT_SET without a registry.
 * Local sizes (int64 [count], count >= 1, borrowed until their pop) nest up to 8 deep (CAPACITY_EXCEEDED); popping or
 * reading none is NOT_SET. On a pushed context alone: INVALID_ARGUMENT while building, EXPIRED after pop. */
FWDMETA_API fwdmeta_status_t fwdmeta_context_next_moe_layer(fwdmeta_context_t context, int64_t *out_index);
FWDMETA_API fwdmeta_status_t fwdmeta_context_push_local_sizes(fwdmeta_context_t context, const int64_t *sizes,
                                                              int64_t count);
FWDMETA_API fwdmeta_status_t fwdmeta_context_pop_local_sizes(fwdmeta_context_t context);
FWDMETA_API fwdmeta_status_t fwdmeta_context_get_local_sizes(fwdmeta_context_t context, const int64_t **out,
                                                             int64_t *out_count);

/* ----------------------------------------------------------------------------------------------- helpers -- */

/* A batch in two groups. */
typedef struct fwdmeta_batch_split {
  uint64_t struct_size;
  int64_t num_decodes, num_prefills;             /* slots or requests */
  int64_t num_decode_tokens, num_prefill_tokens; /* their tokens */
} fwdmeta_batch_split_t;
#define FWDMETA_BATCH_SPLIT_INITIALIZER \
  { sizeof(fwdmeta_batch_split_t), 0, 0, 0, 0 }

/* By role: how many decode and prefill slots, and tokens of each. In any order; idle slots count in neither.
 * INVALID_BATCH as for a build. */
FWDMETA_API fwdmeta_status_t fwdmeta_split_by_role(const int32_t *seq_lens_encoder, const int32_t *seq_lens_this_time,
                                                   int64_t batch_size, fwdmeta_batch_split_t *out);

/* order[i] is the slot that belongs at place i: decodes, then prefills, then idle slots, each moved only where it
 * stands in another group's place. int32 [batch_size]; `changed` (may be null) is 0 for the identity. INVALID_BATCH as
 * for a build. */
FWDMETA_API fwdmeta_status_t fwdmeta_reorder_by_role(const int32_t *seq_lens_encoder, const int32_t *seq_lens_this_time,
                                                     int64_t batch_size, int32_t *order, int32_t *changed);

/* vLLM's rules, which go by lengths and so cannot tell a short prompt chunk from a draft verification. For engines that
 * need the same numbers; prefer the two above. */
typedef struct fwdmeta_length_split_args {
  uint64_t struct_size;
  const int32_t *query_lens;              /* int32 [num_reqs]; decodes first */
  const uint8_t *is_prefilling;           /* uint8 [num_reqs]; needed where treat_short_extends_as_decodes is 0 */
  int64_t num_reqs;                       /* >= 0 */
  int64_t num_tokens;                     /* with padding; FWDMETA_DEFAULT: the sum of query_lens */
  int64_t threshold;                      /* >= 1: a request of at most so many tokens counts as a decode */
  int32_t require_uniform;                /* 0; 1: decodes must all be as long as the first */
  int32_t treat_short_extends_as_decodes; /* 1 */
} fwdmeta_length_split_args_t;
#define FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER \
  { sizeof(fwdmeta_length_split_args_t), NULL, NULL, 0, FWDMETA_DEFAULT, 1, 0, 1 }
/* Prefills begin with the first request longer than `threshold`, with require_uniform also of another length than the
 * first. INVALID_ARGUMENT, or INVALID_BATCH for a negative length. */
FWDMETA_API fwdmeta_status_t fwdmeta_split_by_length(const fwdmeta_length_split_args_t *args,
                                                     fwdmeta_batch_split_t *out);
/* Regions decode, short extend, long extend, prefill from (tokens of this step, tokens computed, prompt length). As
 * reorder_by_role otherwise. Negative numbers are INVALID_BATCH. */
FWDMETA_API fwdmeta_status_t fwdmeta_reorder_by_length(const int32_t *query_lens, const int32_t *computed,
                                                       const int32_t *prompt_lens, int64_t num_reqs, int64_t threshold,
                                                       int32_t *order, int32_t *changed);

/* Chunked local attention as virtual requests, one a chunk of `attn_chunk_size` (a multiple of block_size) positions. A
 * request without tokens gives none. */
typedef struct fwdmeta_local_attention_args {
  uint64_t struct_size;
  const int32_t *query_lens;  /* int32 [num_reqs] */
  const int32_t *seq_lens;    /* int32 [num_reqs] */
  int64_t num_reqs;           /* >= 0 */
  int64_t attn_chunk_size;    /* positions, >= 1 */
  int64_t block_size;         /* positions of a page, >= 1 */
  fwdmeta_rows_t block_table; /* host int32 rows; data null: no tables wanted */
} fwdmeta_local_attention_args_t;
#define FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER \
  { sizeof(fwdmeta_local_attention_args_t), NULL, NULL, 0, 0, 0, FWDMETA_ROWS_INITIALIZER }
/* count: virtual requests. query_lens, seq_lens int32 [capacity]; block_table int32 [capacity][attn_chunk_size /
 * block_size], columns clamped to the row (-1 where it has none); request int32 [capacity]: whose chunk it is. Each
 * array may be null; block_table must be where args has none. INVALID_BATCH as for slices. */
FWDMETA_API fwdmeta_status_t fwdmeta_local_attention(const fwdmeta_local_attention_args_t *args, int64_t capacity,
                                                     int32_t *query_lens, int32_t *seq_lens, int32_t *block_table,
                                                     int32_t *request, int64_t *count);

/* Pages of each sequence as prefix sums, int32 [num_reqs + 1], and the tokens in its last page, int32 [num_reqs]: 0 for
 * an empty one, else 1..page_size. Each may be null. A total past int32 is INVALID_BATCH. */
FWDMETA_API fwdmeta_status_t fwdmeta_paged_indptr(const int32_t *seq_lens, int64_t num_reqs, int64_t page_size,
                                                  int32_t *indptr, int32_t *last_page_len);

/* Allocation blocks to kernel blocks: block b becomes b * (block_size / kernel_block_size) + 0, 1, ...; negative ones
 * become -1. out int32 [count * (block_size / kernel_block_size)]. A number past int32 is OUT_OF_RANGE. */
FWDMETA_API fwdmeta_status_t fwdmeta_expand_block_table(const int32_t *blocks, int64_t count, int64_t block_size,
                                                        int64_t kernel_block_size, int32_t *out);

#ifdef __cplusplus
}
#endif

#endif /* FWDMETA_CONTEXT_H */

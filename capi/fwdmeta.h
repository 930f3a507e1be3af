/*
 * libfwdmeta: the forward metadata of one LLM serving step, in one launch and with no sync.
 *
 * This header and fwdmeta_context.h, which it includes, are the whole public interface. They are plain C11, need no
 * CUDA header, and every symbol of the library that is not declared there is hidden.
 *
 * TERMS
 *   step        one model forward over `batch_size` slots; a build computes the metadata of one step.
 *   slot        one sequence of the batch, live or idle, with three int32 lengths:
 *                 E = seq_lens_encoder    prompt tokens prefilled in this step; 0 for a decoding slot
 *                 D = seq_lens_decoder    tokens of the sequence that are already in the KV cache
 *                 N = seq_lens_this_time  tokens processed in this step
 *               N = 0: idle (E and D may be stale). N > 0 and E > 0: prefill, and E = N. N > 0 and E = 0: decode.
 *   token axis  the new tokens of all slots, packed in slot order. Token i of slot b has position D[b] + i.
 *   page        `block_size` consecutive positions of one sequence in the paged KV cache.
 *   mapping     two int32 arrays and a count: thread block x of a consumer works on tile tile_ids[x] of slot
 *               batch_ids[x]. Slots ascend, tiles ascend within a slot. Entries at and past the count are -1, up to
 *               the capacity, after every build: a consumer with a fixed grid tests `batch_id < 0` and nothing else.
 *
 * ERRORS   Every call returns a status. On failure fwdmeta_last_error() has a message with the offending numbers.
 *          Nothing throws, aborts or exits, and nothing but the log prints.
 * HANDLES  are values (index, generation, type), never pointers. Null (0), freed, foreign and wrong-type handles give
 *          FWDMETA_INVALID_HANDLE. Destroying 0 is FWDMETA_OK and does nothing.
 * STRUCTS  Input and output structs begin with `struct_size`, which the INITIALIZER macros set. A shorter input struct
 *          of an older caller is completed with defaults; a longer one is accepted while its unknown tail is all zero.
 *          Of output structs only the first min(caller, library) bytes are written. A size of 0 is refused. Fields are
 *          only ever appended. Structs without `struct_size` are parts of others or arguments of kernels, and are
 *          frozen.
 * THREADS  One thread at a time may issue builds, advances, resets, captures and reader calls of one builder; different
 *          builders are independent. All other calls may come from any thread at any time.
 * STREAMS  `fwdmeta_stream_t` is a cudaStream_t; null is CUDA's default stream. Builds and replays of one builder are
 *          ordered on the device by the caller. A stream may be destroyed once its calls have returned; only
 *          fwdmeta_meta_reader_begin, fwdmeta_meta_dump and a DLPack tensor for another stream need the stream that the
 *          step was built on. The host backend ignores streams.
 * CAPTURE  Every call may be made while a stream is being captured, and breaks no capture; those that say
 *          NOT_CAPTURABLE refuse when their own stream is.
 * DEVICE   The current device and context of the calling thread are the same after every call, errors included.
 */
#ifndef FWDMETA_H
#define FWDMETA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The library's own is fwdmeta_version(). */
#define FWDMETA_VERSION_MAJOR 1
#define FWDMETA_VERSION_MINOR 0
#define FWDMETA_VERSION_PATCH 0
/* major * 10000 + minor * 100 + patch, the form that fwdmeta_version() returns. */
#define FWDMETA_VERSION (FWDMETA_VERSION_MAJOR * 10000 + FWDMETA_VERSION_MINOR * 100 + FWDMETA_VERSION_PATCH)

#if defined(__GNUC__)
#define FWDMETA_API __attribute__((visibility("default")))
#else
#define FWDMETA_API
#endif

/* ------------------------------------------------------------------------------------------------ statuses -- */

/* What every call returns, but those that return a name, a number or a hash. docs/guides/errors.md has a table. */
typedef int32_t fwdmeta_status_t;
enum {
  FWDMETA_OK = 0,
  FWDMETA_INVALID_ARGUMENT = 1,  /* null or out of range, a struct not initialised, a call in the wrong state */
  FWDMETA_INVALID_HANDLE = 2,    /* null, freed, of another type or foreign */
  FWDMETA_INVALID_BATCH = 3,     /* the lengths of a slot, or their sums, break a rule */
  FWDMETA_CAPACITY_EXCEEDED = 4, /* more than the configuration or the caller's array has room for */
  FWDMETA_NOT_FOUND = 5,         /* no such name, key or field */
  FWDMETA_NOT_SET = 6,           /* known, but nothing has been set */
  FWDMETA_OUT_OF_RANGE = 7,      /* an index or number past its end */
  FWDMETA_ALREADY_EXISTS = 8,    /* a name or a place that is taken */
  FWDMETA_NOT_READY = 9,         /* not there yet, and the call was not to wait */
  FWDMETA_EXPIRED = 10,          /* it was there and has been overwritten, or ended */
  FWDMETA_BUSY = 11,             /* in use: a reader, a gather, all handles or staging entries */
  FWDMETA_NOT_CAPTURABLE = 12,   /* the stream is being captured */
  FWDMETA_NO_GRAPH = 13,         /* no captured graph fits, and running without one is not allowed */
  FWDMETA_RANK_MISMATCH = 14,    /* ranks of different configurations or steps */
  FWDMETA_TIMEOUT = 15,          /* the time to wait has passed */
  FWDMETA_UNSUPPORTED = 16,      /* not in this version, or not on this backend */
  FWDMETA_UNAVAILABLE = 17,      /* not in this state: sets that are captured, a plug-in or transport that failed */
  FWDMETA_OUT_OF_MEMORY = 18,    /* an allocation failed */
  FWDMETA_NO_DEVICE = 19,        /* no CUDA device or driver */
  FWDMETA_CUDA_ERROR = 20,       /* CUDA failed, with its text in the message */
  FWDMETA_INTERNAL = 21,         /* a defect of the library */
  FWDMETA_STATUS_COUNT = 22      /* closing sentinel, never returned */
};

/* Handles. 0 is the null handle. */
typedef uint64_t fwdmeta_builder_t;
typedef uint64_t fwdmeta_meta_t; /* the view of one step */
/* A cudaStream_t. */
typedef void *fwdmeta_stream_t;

/* An int64 field whose comment names FWDMETA_DEFAULT takes the default that stands there. */
#define FWDMETA_DEFAULT INT64_MIN

/* Sizes of arrays in structs: cache groups, entries of max_len_tensor, dimensions of a tensor. */
#define FWDMETA_MAX_CACHE_GROUPS 8
#define FWDMETA_MAX_LEN_COUNT 9
#define FWDMETA_MAX_DIMS 8

/* Where builds run and arrays lie. */
typedef int32_t fwdmeta_backend_t;
enum {
  FWDMETA_BACKEND_AUTO = 0, /* CUDA where a device is, else the host backend, which is logged once as a warning */
  FWDMETA_BACKEND_HOST = 1, /* plain C++, every build complete when the call returns */
  FWDMETA_BACKEND_CUDA = 2  /* NO_DEVICE where none is */
};

/* What a tile of the decoder mapping is: query rows (APPEND) or a chunk of keys (MLA). */
typedef int32_t fwdmeta_attention_t;
enum { FWDMETA_ATTENTION_APPEND = 0, FWDMETA_ATTENTION_MLA = 1 };

/* Of pointers handed in and out. On the host backend both are host memory. */
typedef int32_t fwdmeta_memory_kind_t;
enum { FWDMETA_MEMORY_DEVICE = 0, FWDMETA_MEMORY_HOST = 1 };

/* ------------------------------------------------------------------------------------- library-wide calls -- */

/* The library's version, as FWDMETA_VERSION. Any thread, any time. */
FWDMETA_API int32_t fwdmeta_version(void);

/* The name of a status without its prefix ("OK", "INVALID_BATCH"), "UNKNOWN" for any other number. A static string. */
FWDMETA_API const char *fwdmeta_status_name(fwdmeta_status_t status);

/* The message of this thread's latest failed call, "" before the first. It lives until this thread's next failing
 * call of the library. */
FWDMETA_API const char *fwdmeta_last_error(void);

/* ---------------------------------------------------------------------------------------------------- log -- */

/* How grave a record is. */
typedef int32_t fwdmeta_log_level_t;
enum {
  FWDMETA_LOG_TRACE = 0,
  FWDMETA_LOG_DEBUG = 1,
  FWDMETA_LOG_INFO = 2,
  FWDMETA_LOG_WARN = 3,
  FWDMETA_LOG_ERROR = 4,
  FWDMETA_LOG_OFF = 5
};
/* Receives one log record; `message` (no newline, null-terminated) lives for the duration of the call. Called with no
 * lock of the library held, on the thread that made the record. */
typedef void (*fwdmeta_log_callback_t)(fwdmeta_log_level_t level, const char *message, void *user);

/* Records below `level` are dropped. The default is FWDMETA_LOG_WARN, or the environment variable FWDMETA_LOG_LEVEL
 * (trace, debug, info, warn, error, off), read once. INVALID_ARGUMENT for another number. Any thread, any time. */
FWDMETA_API fwdmeta_status_t fwdmeta_log_set_level(fwdmeta_log_level_t level);

/* Hands all records to `callback`; null returns to the default, which writes to standard error. A record that another
 * thread is delivering may still reach the former callback while this call returns. Any thread, any time. */
FWDMETA_API fwdmeta_status_t fwdmeta_log_set_callback(fwdmeta_log_callback_t callback, void *user);

/* ------------------------------------------------------------------------------------------ configuration -- */

/* One KV-cache group: a page of the cache manager is `block_size` positions; block tables hold kernel pages of
 * `kernel_block_size` positions. A replicated group ignores context parallelism. */
typedef struct fwdmeta_group_config {
  int64_t block_size;        /* >= 1 */
  int64_t kernel_block_size; /* divides block_size; FWDMETA_DEFAULT: block_size */
  int64_t replicated;        /* 0 or 1 */
} fwdmeta_group_config_t;

/* Memory of one kind. `alloc` returns at least `bytes` bytes aligned to `alignment` (a power of two up to 256), or
 * null; the memory is free for any stream when it returns: nothing enqueued before still writes to it. `free` gets the
 * same size back, may be called from a thread of the library after the builder's destruction, and must not throw. No
 * lock is held. Either both pointers are set or neither. They serve the arrays, the mirror and the staging; small host
 * objects of a builder come from the C++ runtime, also at creation only. */
typedef struct fwdmeta_allocator {
  void *(*alloc)(size_t bytes, size_t alignment, void *user); /* null for out of memory */
  void (*free)(void *ptr, size_t bytes, void *user);          /* of what `alloc` returned */
  void *user;                                                 /* handed to both */
} fwdmeta_allocator_t;

/* What a builder is created with: the bounds of a step, the model's heads, cache groups, tiles and memory. Tokens,
 * positions and rows are counts, sizes are bytes. Numbers are checked by fwdmeta_get_capacities and at creation. */
typedef struct fwdmeta_config {
  uint64_t struct_size;
  int32_t api_version;       /* FWDMETA_VERSION of the header that the caller was compiled with; of another major
                              * version INVALID_ARGUMENT */
  fwdmeta_backend_t backend; /* AUTO */
  int64_t device;            /* CUDA ordinal; FWDMETA_DEFAULT: the calling thread's current device */
  int64_t max_batch_size;    /* required, >= 1; at most 131072 on the CUDA backend (UNSUPPORTED) */
  int64_t max_num_tokens;    /* required, >= 1; covers the largest graph bucket */
  int64_t max_model_len;     /* required, >= 1; includes look-ahead (draft) tokens */
  int64_t max_num_kv_tokens; /* >= 1; FWDMETA_DEFAULT: max_batch_size * max_model_len. Bounds the sum of D+N */
  int64_t num_q_heads;       /* required, >= 1, divisible by num_kv_heads */
  int64_t num_kv_heads;      /* required, >= 1 */
  int64_t block_size;        /* 64; ignored when num_cache_groups > 0 */
  int64_t kernel_block_size; /* FWDMETA_DEFAULT: block_size; ignored when num_cache_groups > 0 */
  int64_t num_cache_groups;  /* 0: one group made of the two sizes above; else 1..8 entries of cache_groups */
  const fwdmeta_group_config_t *cache_groups; /* read during the call only */
  int64_t encoder_block_shape_q;              /* 64; query rows of an encoder tile */
  int64_t decoder_block_shape_q;              /* 16; query rows of a decoder tile */
  fwdmeta_attention_t attention;              /* APPEND */
  int32_t reserved;                           /* 0 */
  int64_t mla_chunk_size;                     /* 0: search; else the forced chunk */
  int64_t num_sms;                            /* >= 1; FWDMETA_DEFAULT: the device's; 132 on the host backend */
  int64_t cp_size;                            /* 1; context-parallel ranks R */
  int64_t cp_rank;                            /* 0 */
  int64_t cp_interleave;                      /* 1; consecutive positions per rank; divides every group's block_size */
  int64_t pad_token_id;                       /* 0; any int32 */
  int64_t pad_seq_len;                        /* 0; any int32; seq_lens_kv of slots that are not live */
  uint64_t outputs;    /* bit (1 << FWDMETA_FIELD_x) per wanted array; all. Counts, maxima, the chunk and
                        * block counts are always written; the invalid counters count what is in the
                        * wanted arrays */
  int64_t generations; /* 1, 1..64; sets of device arrays that eager builds rotate through */
  int64_t depth;       /* 4, 2..4096; steps that the host mirror keeps */
  int64_t max_metas;   /* 64, 1..65536; fwdmeta_meta_t handles alive at once */
  fwdmeta_allocator_t device_allocator; /* null: CUDA's; unused on the host backend */
  fwdmeta_allocator_t pinned_allocator; /* null: CUDA's; must give pinned mapped memory; unused on the host backend */
  fwdmeta_allocator_t host_allocator;   /* null: the C++ runtime's; holds the arrays of the host backend */
} fwdmeta_config_t;

#define FWDMETA_ALLOCATOR_INITIALIZER \
  { NULL, NULL, NULL }
#define FWDMETA_CONFIG_INITIALIZER                                                                                    \
  {                                                                                                                   \
    sizeof(fwdmeta_config_t), FWDMETA_VERSION, FWDMETA_BACKEND_AUTO, FWDMETA_DEFAULT, 0, 0, 0, FWDMETA_DEFAULT, 0, 0, \
        64, FWDMETA_DEFAULT, 0, NULL, 64, 16, FWDMETA_ATTENTION_APPEND, 0, 0, FWDMETA_DEFAULT, 1, 0, 1, 0, 0,         \
        UINT64_MAX, 1, 4, 64, FWDMETA_ALLOCATOR_INITIALIZER, FWDMETA_ALLOCATOR_INITIALIZER,                           \
        FWDMETA_ALLOCATOR_INITIALIZER                                                                                 \
  }

/* A bucket to bound (the grid that a consumer is captured with). Values < 1 are INVALID_ARGUMENT, values past the
 * configuration CAPACITY_EXCEEDED. */
typedef struct fwdmeta_capacity_query {
  uint64_t struct_size;
  int64_t slots;                 /* FWDMETA_DEFAULT: max_batch_size */
  int64_t tokens;                /* FWDMETA_DEFAULT: max_num_tokens */
  int64_t block_table_alignment; /* 1; block_table_width is rounded up to a multiple of it */
} fwdmeta_capacity_query_t;
#define FWDMETA_CAPACITY_QUERY_INITIALIZER \
  { sizeof(fwdmeta_capacity_query_t), FWDMETA_DEFAULT, FWDMETA_DEFAULT, 1 }

/* How large a configuration's arrays are. */
typedef struct fwdmeta_capacities {
  uint64_t struct_size;
  int64_t decoder;                                     /* entries of decoder_batch_ids and decoder_tile_ids_per_batch */
  int64_t encoder;                                     /* of encoder_* */
  int64_t kv;                                          /* of kv_* */
  int64_t pre_cache;                                   /* of pre_cache_* */
  int64_t block_table_width[FWDMETA_MAX_CACHE_GROUPS]; /* columns a table needs for max_model_len; 0 past the groups */
  int64_t device_bytes; /* what creation asks of each allocator, on the backend that the configuration selects */
  int64_t pinned_bytes; /* likewise of the pinned allocator */
  int64_t host_bytes;   /* and of the host allocator */
} fwdmeta_capacities_t;
#define FWDMETA_CAPACITIES_INITIALIZER \
  { sizeof(fwdmeta_capacities_t), 0, 0, 0, 0, {0}, 0, 0, 0 }

/* Capacities of a configuration, and, with a bucket in `query`, upper bounds by the same formulas. Allocates nothing,
 * needs no device (with BACKEND_AUTO the byte totals are then those of the host backend). `query` may be null. Refuses
 * what fwdmeta_builder_create would refuse of the numbers. Any thread, any time, also while capturing. */
FWDMETA_API fwdmeta_status_t fwdmeta_get_capacities(const fwdmeta_config_t *config,
                                                    const fwdmeta_capacity_query_t *query, fwdmeta_capacities_t *out);

/* ------------------------------------------------------------------------------------------------ builder -- */

/* Creates a builder: validates, allocates everything it will ever need (nothing is allocated later) and fills the
 * arrays with their tail values. May block. The caller owns the handle. A configuration that cannot be had is refused
 * with INVALID_ARGUMENT, UNSUPPORTED, CAPACITY_EXCEEDED (a mapping's capacity past int32), NO_DEVICE, OUT_OF_MEMORY or
 * CUDA_ERROR. */
FWDMETA_API fwdmeta_status_t fwdmeta_builder_create(const fwdmeta_config_t *config, fwdmeta_builder_t *out);

/* Ends the handle and returns at once. The memory is freed when the last holder is gone (this handle, metas, DLPack
 * tensors, captured graphs) and the recorded work is done. OK for 0. May be called while capturing. */
FWDMETA_API fwdmeta_status_t fwdmeta_builder_destroy(fwdmeta_builder_t builder);

/* What a builder is and has done. */
typedef struct fwdmeta_builder_info {
  uint64_t struct_size;
  fwdmeta_backend_t backend; /* HOST or CUDA */
  int32_t device;            /* ordinal, -1 on the host backend */
  int64_t num_sms;           /* by which the chunk of mla attention is searched */
  int64_t generations;       /* sets of arrays */
  int64_t depth;             /* steps that the mirror keeps */
  int64_t
      single_launch_slots; /* builds of up to so many slots are one kernel, larger ones two; 0 on the host backend */
  int64_t last_step;       /* number of the latest eager build, 0 before the first */
  int64_t last_advance;    /* how many fwdmeta_advance calls were enqueued eagerly; replays are not among them */
  int64_t host_waits;      /* how often a build with host lengths had to wait for a staging entry */
  int64_t device_bytes;    /* allocated, as in fwdmeta_capacities_t */
  int64_t pinned_bytes;    /* likewise */
  int64_t host_bytes;      /* likewise */
  int32_t *advance_counts; /* int32 [2] on the backend's memory: num_stopped, num_length_limited, latest advance */
} fwdmeta_builder_info_t;
#define FWDMETA_BUILDER_INFO_INITIALIZER \
  { sizeof(fwdmeta_builder_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL }

/* Does not block. Any thread, any time. */
FWDMETA_API fwdmeta_status_t fwdmeta_builder_get_info(fwdmeta_builder_t builder, fwdmeta_builder_info_t *out);

/* Refills every array of every set with its tail value, in-stream, captured sets too. Does not block. NOT_CAPTURABLE
 * while the stream is being captured, BUSY while a reader has begun and not ended; readers that have ended are waited
 * for in-stream. */
FWDMETA_API fwdmeta_status_t fwdmeta_builder_reset(fwdmeta_builder_t builder, fwdmeta_stream_t stream);

/* ------------------------------------------------------------------------------------------------- builds -- */

/* Rows of a two-dimensional array: block tables (int32 kernel-page numbers, -1 for none), input_ids and draft_tokens
 * (int64). Device memory on the CUDA backend, host memory on the host backend. Column c of row b is
 * data[b * row_stride + c]; columns at or past `width`, or at or past row_lengths[b] where row_lengths is given, are
 * outside the row and are never read. data = null: not given. */
typedef struct fwdmeta_rows {
  const void *data;           /* borrowed until the build has run; null: not given */
  int64_t width;              /* columns, 0..2^31-1 */
  int64_t row_stride;         /* elements; >= width where there is more than one row */
  const int32_t *row_lengths; /* int32 [batch_size] in the same memory, or null */
} fwdmeta_rows_t;

/* FWDMETA_BUILD_* bits. */
typedef int32_t fwdmeta_build_flags_t;
enum {
  FWDMETA_BUILD_NO_WAIT = 1 /* host lengths: BUSY instead of waiting for a staging entry */
};

/* One step to build. The arrays are borrowed, as fwdmeta_build says. */
typedef struct fwdmeta_batch {
  uint64_t struct_size;
  fwdmeta_memory_kind_t memory_kind;  /* of the three length arrays: stated, never detected */
  fwdmeta_build_flags_t flags;        /* FWDMETA_BUILD_* bits; 0 */
  int64_t batch_size;                 /* 0..max_batch_size */
  int64_t num_padded_tokens;          /* T, the length of the token axis with padding; -1: the sum of N */
  const int32_t *seq_lens_encoder;    /* int32 [batch_size]; the three may be null where batch_size = 0 */
  const int32_t *seq_lens_decoder;    /* int32 [batch_size] */
  const int32_t *seq_lens_this_time;  /* int32 [batch_size] */
  int64_t num_block_tables;           /* 0 with block_tables null, else the number of cache groups */
  const fwdmeta_rows_t *block_tables; /* one per cache group; the array itself is host memory, read during the call */
  fwdmeta_rows_t input_ids;           /* int64, one row a slot; column i is the id of token i of the step */
  fwdmeta_rows_t draft_tokens;        /* column 0 is the last accepted token */
  fwdmeta_stream_t stream;            /* that the build is enqueued on */
  int64_t generation;                 /* set to write. FWDMETA_DEFAULT: the next of the rotation; 0 when capturing */
} fwdmeta_batch_t;
#define FWDMETA_ROWS_INITIALIZER \
  { NULL, 0, 0, NULL }
#define FWDMETA_BATCH_INITIALIZER                                                                                  \
  {                                                                                                                \
    sizeof(fwdmeta_batch_t), FWDMETA_MEMORY_DEVICE, 0, 0, -1, NULL, NULL, NULL, 0, NULL, FWDMETA_ROWS_INITIALIZER, \
        FWDMETA_ROWS_INITIALIZER, NULL, FWDMETA_DEFAULT                                                            \
  }

/*
 * Enqueues the build of one step and returns: one kernel (two above single_launch_slots), no copy, no sync, no
 * allocation. `out_meta` (may be null) receives a view of the step that the caller owns. `out_step` (may be null)
 * receives the step number (1, 2, ...), 0 for a captured build.
 *
 * Device lengths: they and all other inputs must stay as they are until the build has run. Errors in the numbers are
 * found on the device and come with the counts. Host lengths: they are read during the call, errors in the numbers are
 * returned by it and nothing is enqueued. The call waits (its only host wait) when all `depth` staging entries are in
 * flight, or returns BUSY with FWDMETA_BUILD_NO_WAIT. On the host backend both kinds are host pointers, and the kind
 * only chooses how errors are reported.
 *
 * While `stream` is being captured the build becomes one kernel node (two above single_launch_slots) that keeps
 * batch_size, T and all addresses, writes the same set in every replay, and publishes to the replay entry of the
 * mirror. Eager builds leave that set alone from then on. The graph holds the builder. Host lengths are refused with
 * NOT_CAPTURABLE and the capture stays valid.
 *
 * Fails with INVALID_ARGUMENT, INVALID_HANDLE, CAPACITY_EXCEEDED (batch_size or T past its maximum), INVALID_BATCH,
 * OUT_OF_RANGE (no such generation), BUSY (a reader has begun and not ended, a capture while a reader is pending, no
 * meta handle left), UNAVAILABLE (every set, or the one asked for, is captured), NOT_CAPTURABLE, CUDA_ERROR. On failure
 * nothing is enqueued and no output is written.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_build(fwdmeta_builder_t builder, const fwdmeta_batch_t *batch,
                                           fwdmeta_meta_t *out_meta, int64_t *out_step);

/* Bits of `error` of the counts: what is wrong with the lengths of a step. */
enum {
  FWDMETA_ERROR_NEGATIVE = 1,         /* N < 0, or E < 0 or D < 0 in a live slot */
  FWDMETA_ERROR_ENCODER_MISMATCH = 2, /* E > 0 and E != N */
  FWDMETA_ERROR_MODEL_LEN = 4,        /* D + N > max_model_len */
  FWDMETA_ERROR_SUM_OVERFLOW = 8,     /* sum of N, or of D + N of live slots, past int32 */
  FWDMETA_ERROR_NUM_TOKENS = 16,      /* sum of N > max_num_tokens */
  FWDMETA_ERROR_PADDED_TOKENS = 32,   /* T < sum of N */
  FWDMETA_ERROR_NUM_KV_TOKENS = 64    /* sum of D + N > max_num_kv_tokens */
};
/* Bits of `warnings` of the counts. The step is valid. */
enum {
  FWDMETA_WARNING_INVALID_SLOTS = 1,   /* num_invalid_slots is not 0 */
  FWDMETA_WARNING_INVALID_IDS = 2,     /* num_invalid_ids is not 0 */
  FWDMETA_WARNING_REJECTED_CLAMPED = 4 /* of an advance since the previous good build */
};

/* ------------------------------------------------------------------------------------------------- counts -- */

/* The counts of a step, read from the host mirror. */
typedef struct fwdmeta_counts {
  uint64_t struct_size;
  int64_t step;                 /* eager: the step number; replay: its ordinal, 1, 2, ... */
  int64_t error_value;          /* the number that broke a rule, and the limit it broke; 0 without an error */
  int64_t error_limit;          /* see error_value */
  int32_t batch_size;           /* slots of the build, idle ones too */
  int32_t num_live;             /* slots with N > 0 */
  int32_t num_prefill;          /* live slots with E > 0 */
  int32_t num_decode;           /* live slots with E = 0 */
  int32_t num_tokens;           /* sum of N */
  int32_t num_padded_tokens;    /* T */
  int32_t num_kv_tokens;        /* total of cu_seqlens_k */
  int32_t num_attn_kv_tokens;   /* total of attn_cu_seqlens_k */
  int32_t decoder_num_blocks;   /* tiles of the decoder mapping */
  int32_t encoder_num_blocks;   /* of the encoder mapping */
  int32_t kv_num_blocks;        /* of the kv mapping */
  int32_t pre_cache_num_blocks; /* of the pre-cache mapping */
  int32_t num_output_tokens;    /* total of cu_seqlens_q_output */
  int32_t num_invalid_slots;    /* over all cache groups; final when is_final is set; saturates at 2^31-1 */
  int32_t num_invalid_ids;      /* final when is_final is set */
  int32_t warnings;             /* FWDMETA_WARNING_* bits; final when is_final is set */
  int32_t error;                /* FWDMETA_ERROR_* bits, 0 for a good step */
  int32_t error_slot;           /* -1: none */
  /* max_len_tensor, each >= 0: [0] max N; [1] max E of live slots; [2] max D of all slots, idle ones too; [3] max D+N
   * of live slots; [4] max D of decode slots; [5] max D+N of live slots with D > 0; [6..8] 0 */
  int32_t max_len[FWDMETA_MAX_LEN_COUNT];
  int32_t decoder_chunk_size; /* decoder_chunk_size_device */
  int32_t is_final;           /* 1: the invalid counters too are those of the completed build */
  int32_t reserved;           /* 0 */
} fwdmeta_counts_t;
#define FWDMETA_COUNTS_INITIALIZER \
  { sizeof(fwdmeta_counts_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 }

/* A wait ends as soon as the counts are readable, or with FINAL when num_invalid_* are final too. */
typedef int32_t fwdmeta_wait_flags_t;
enum { FWDMETA_WAIT_FINAL = 1 };

/* Timeouts are microseconds: 0 asks and does not wait (NOT_READY), negative waits for ever, and a positive one that
 * passes gives TIMEOUT. Waits spin, then yield; they make no CUDA call, so they are allowed while capturing.
 *
 * Counts of the eager step `step`: EXPIRED once a later build has taken its entry (step + depth has been issued),
 * OUT_OF_RANGE for a number that was not given out. For a step with an error the counts are written and the status is
 * the one that host lengths would have given, with its message. `out` may be null to wait only. */
FWDMETA_API fwdmeta_status_t fwdmeta_counts_wait(fwdmeta_builder_t builder, int64_t step, fwdmeta_wait_flags_t flags,
                                                 int64_t timeout_us, fwdmeta_counts_t *out);

/* Counts of a captured build's replay. `replay` is its ordinal over all captured builds of this builder, in device
 * order (1 is the first), or 0 for the newest that has published. EXPIRED once a later replay has published. Timeouts,
 * errors of the step and `out` as above. */
FWDMETA_API fwdmeta_status_t fwdmeta_replay_wait(fwdmeta_builder_t builder, int64_t replay, fwdmeta_wait_flags_t flags,
                                                 int64_t timeout_us, fwdmeta_counts_t *out);

/* ------------------------------------------------------------------------------------------------ advance -- */

/* The lengths to move on. All arrays are the engine's, borrowed until the advance has run. */
typedef struct fwdmeta_advance_args {
  uint64_t struct_size;
  int64_t batch_size;          /* 0..max_batch_size */
  int32_t *seq_lens_encoder;   /* int32 [batch_size], device memory (host memory on the host backend); rewritten */
  int32_t *seq_lens_decoder;   /* likewise */
  int32_t *seq_lens_this_time; /* likewise */
  const int32_t *num_rejected; /* int32 [batch_size] or null; decode slots, clamped to [0, N-1] */
  const uint8_t *stop;         /* uint8 [batch_size] or null; non-zero ends the slot */
  const int32_t *prompt_lens;  /* int32 [batch_size] or null */
  int64_t num_draft_tokens;    /* k >= 0: the next step has up to 1 + k tokens per slot */
  fwdmeta_stream_t stream;     /* that the advance is enqueued on */
} fwdmeta_advance_args_t;
#define FWDMETA_ADVANCE_ARGS_INITIALIZER \
  { sizeof(fwdmeta_advance_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL }

/* What the newest advance did. */
typedef struct fwdmeta_advance_counts {
  uint64_t struct_size;
  int64_t advance;            /* ordinal in device order, replays of captured advances included */
  int32_t num_stopped;        /* slots that became idle by `stop` */
  int32_t num_length_limited; /* slots that became idle because D has reached max_model_len */
} fwdmeta_advance_counts_t;
#define FWDMETA_ADVANCE_COUNTS_INITIALIZER \
  { sizeof(fwdmeta_advance_counts_t), 0, 0, 0 }

/*
 * Moves the lengths to the next decode step, in place, by one kernel and with no sync. For a live slot:
 *   D += N - rejected,  E = 0,  N = min(1 + k, max_model_len - D);  at N = 0, or where `stop` is set, N = E = 0.
 * A prefill slot with D + N < prompt_lens[b] stays as it is, and so does an idle one. A rejected count outside
 * [0, N-1] is clamped, and sets FWDMETA_WARNING_REJECTED_CLAMPED in the next good build. May be captured (one kernel
 * node). Does not block. INVALID_ARGUMENT, CAPACITY_EXCEEDED (batch_size past its maximum) or CUDA_ERROR; nothing is
 * enqueued then.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_advance(fwdmeta_builder_t builder, const fwdmeta_advance_args_t *args);

/* Counts of the newest completed advance; NOT_READY before the first, timeouts as above. With `advance` > 0, waits
 * until that ordinal has been reached (EXPIRED when a later one has overwritten it). */
FWDMETA_API fwdmeta_status_t fwdmeta_advance_wait(fwdmeta_builder_t builder, int64_t advance, int64_t timeout_us,
                                                  fwdmeta_advance_counts_t *out);

/* ------------------------------------------------------------------------------------------------- fields -- */

/*
 * Every array that a build writes. Shapes: B = max_batch_size, T = max_num_tokens, capacities as above. Mapping and
 * output-row arrays hold -1 at and past their count; token arrays hold their padding value at and past the sum of N;
 * [B+1] prefix sums repeat the total past batch_size. *_cpu arrays lie in the step's entry of the host mirror and
 * expire with it; all others are in the backend's memory, read-only to the engine, at an address that never changes.
 */
typedef int32_t fwdmeta_field_t;
enum {
  FWDMETA_FIELD_DECODER_BATCH_IDS = 0,             /* i32 [decoder] */
  FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH = 1,    /* i32 [decoder]; mla: KV chunk */
  FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE = 2,     /* i32 [1] */
  FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU = 3,        /* i32 [1] */
  FWDMETA_FIELD_DECODER_CU_TILES = 4,              /* i32 [B+1] */
  FWDMETA_FIELD_ENCODER_BATCH_IDS = 5,             /* i32 [encoder] */
  FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH = 6,    /* i32 [encoder] */
  FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X = 7,          /* i32 [1] */
  FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU = 8,      /* i32 [1] */
  FWDMETA_FIELD_ENCODER_CU_TILES = 9,              /* i32 [B+1] */
  FWDMETA_FIELD_KV_BATCH_IDS = 10,                 /* i32 [kv] */
  FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH = 11,        /* i32 [kv]; tile t is page floor(D / block_size) + t of the slot */
  FWDMETA_FIELD_KV_NUM_BLOCKS_X = 12,              /* i32 [1] */
  FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU = 13,          /* i32 [1] */
  FWDMETA_FIELD_KV_CU_TILES = 14,                  /* i32 [B+1] */
  FWDMETA_FIELD_PRE_CACHE_BATCH_IDS = 15,          /* i32 [pre_cache] */
  FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH = 16, /* i32 [pre_cache] */
  FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS = 17,         /* i32 [1] */
  FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU = 18,     /* i32 [1] */
  FWDMETA_FIELD_PRE_CACHE_CU_TILES = 19,           /* i32 [B+1] */
  FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE = 20,    /* i32 [1]; tokens per KV chunk of mla, 0 in append mode */
  FWDMETA_FIELD_CU_SEQLENS_Q = 21,                 /* i32 [B+1]; of N */
  FWDMETA_FIELD_CU_SEQLENS_K = 22,                 /* i32 [B+1]; of D+N of live slots */
  FWDMETA_FIELD_ATTN_CU_SEQLENS_K = 23,            /* i32 [B+1]; of D+N of prefill slots and N of decode slots */
  FWDMETA_FIELD_SEQ_LENS_KV = 24,                  /* i32 [B]; pad_seq_len where not live */
  FWDMETA_FIELD_SEQ_LENS_KV_LOCAL = 25,            /* i32 [B]; this rank's share; only with cp_size > 1 */
  FWDMETA_FIELD_BATCH_ID_PER_TOKEN = 26,           /* i32 [T]; padding -1. Signed */
  FWDMETA_FIELD_POSITION_IDS = 27,                 /* i64 [T]; padding 0 */
  FWDMETA_FIELD_SLOT_MAPPING = 28,                 /* i64 [T] per cache group; -1: padding, other rank or invalid */
  FWDMETA_FIELD_IS_PADDING = 29,                   /* u8 [T]; padding 1 */
  FWDMETA_FIELD_MASK_ENCODER_BATCH = 30,           /* i32 [T]; 1 for prefill tokens */
  FWDMETA_FIELD_IDS_REMOVE_PADDING = 31,           /* i64 [T]; padding pad_token_id */
  FWDMETA_FIELD_SEQ_LENS_OUTPUT = 32,              /* i32 [B]; rows that need logits: prefill 1, decode N, idle 0 */
  FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT = 33,          /* i32 [B+1] */
  FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT = 34,    /* i32 [T]; tail -1 */
  FWDMETA_FIELD_LOGITS_INDICES = 35,               /* i32 [T]; index on the token axis; tail -1 */
  FWDMETA_FIELD_LAST_TOKEN_INDEX = 36,             /* i32 [B]; -1: none */
  FWDMETA_FIELD_MAX_LEN_TENSOR = 37,               /* i32 [9], device */
  FWDMETA_FIELD_MAX_LEN_TENSOR_CPU = 38,           /* i32 [9] */
  FWDMETA_FIELD_COUNTS = 39,     /* i32 [18], device: batch_size ... error_slot as in fwdmeta_counts_t */
  FWDMETA_FIELD_COUNTS_I64 = 40, /* i64 [3], device: error_value, error_limit, step */
  FWDMETA_FIELD_COUNT = 41       /* closing sentinel */
};

/* dtype codes are DLPack's. */
typedef uint8_t fwdmeta_dtype_code_t;
enum {
  FWDMETA_DTYPE_INT = 0,
  FWDMETA_DTYPE_UINT = 1,
  FWDMETA_DTYPE_FLOAT = 2,
  FWDMETA_DTYPE_BFLOAT = 4,
  FWDMETA_DTYPE_BOOL = 6
};

/* An array as it lies in memory. */
typedef struct fwdmeta_tensor {
  uint64_t struct_size;
  void *data; /* borrowed: the library never frees what the engine sets, nor reads it but to dump */
  fwdmeta_memory_kind_t memory_kind; /* of `data` */
  int32_t device;                    /* ordinal of device memory, -1 for host memory */
  fwdmeta_dtype_code_t dtype_code;   /* FWDMETA_DTYPE_* */
  uint8_t dtype_bits;                /* of one lane */
  uint16_t dtype_lanes;              /* 1 */
  int32_t ndim;                      /* 0..8 */
  int64_t shape[FWDMETA_MAX_DIMS];   /* elements */
  int64_t strides[FWDMETA_MAX_DIMS]; /* elements; row-major for built fields */
} fwdmeta_tensor_t;
#define FWDMETA_TENSOR_INITIALIZER                                                                     \
  {                                                                                                    \
    sizeof(fwdmeta_tensor_t), NULL, FWDMETA_MEMORY_DEVICE, -1, FWDMETA_DTYPE_INT, 32, 1, 0, {0}, { 0 } \
  }

/* The name of a field ("decoder_batch_ids"), null for a number outside [0, FWDMETA_FIELD_COUNT). A static string. */
FWDMETA_API const char *fwdmeta_field_name(fwdmeta_field_t field);

/* --------------------------------------------------------------------------------------------- forward meta -- */

/*
 * A fwdmeta_meta_t is the view of one step: a set of arrays and an entry of the mirror. It holds the builder's memory
 * alive. The arrays of an eager step are those of its set, which the set's next build overwrites.
 */

/* Ends the handle. OK for 0. BUSY while a reader of this meta has begun and not ended. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_destroy(fwdmeta_meta_t meta);

/* A tensor by name: a built field, `slot_mapping[g]` for cache group g (plain `slot_mapping` is group 0), or what the
 * engine has set on the meta or, failing that, on the builder. NOT_FOUND for any other name, fields that the
 * configuration did not ask for included; INVALID_ARGUMENT for what can be no name. EXPIRED for *_cpu fields whose
 * mirror entry has been overwritten. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_get(fwdmeta_meta_t meta, const char *name, fwdmeta_tensor_t *out);

/* A built field by number; `group` is the cache group for SLOT_MAPPING, else 0. OUT_OF_RANGE for a number that is no
 * field's, NOT_FOUND for a group or field that is not built, EXPIRED as above. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_get_field(fwdmeta_meta_t meta, fwdmeta_field_t field, int32_t group,
                                                    fwdmeta_tensor_t *out);

/* Sets an engine-owned tensor under a name (1..63 printable ASCII characters; `caches[3]` is a name like any other)
 * without copying its data; a null `tensor` removes it (NOT_FOUND where none is set). A later set replaces the former.
 * The names of built fields are refused with INVALID_ARGUMENT. A builder's tensors (up to 1024) are seen by all its
 * metas, a meta's own (up to 32) come first; beyond that CAPACITY_EXCEEDED. Any thread; not concurrently with readers
 * of the same name. */
FWDMETA_API fwdmeta_status_t fwdmeta_builder_set_tensor(fwdmeta_builder_t builder, const char *name,
                                                        const fwdmeta_tensor_t *tensor);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_set_tensor(fwdmeta_meta_t meta, const char *name,
                                                     const fwdmeta_tensor_t *tensor);

/* The counts of the meta's step, as fwdmeta_counts_wait; of a captured build those of the newest replay that has
 * published, as fwdmeta_replay_wait. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_wait(fwdmeta_meta_t meta, fwdmeta_wait_flags_t flags, int64_t timeout_us,
                                               fwdmeta_counts_t *out);

/* What FWDMETA_ATTR_FORWARD_MODE is. */
typedef int32_t fwdmeta_forward_mode_t;
enum {
  FWDMETA_FORWARD_EXTEND = 1, /* all live slots prefill */
  FWDMETA_FORWARD_DECODE = 2, /* all live slots decode */
  FWDMETA_FORWARD_MIXED = 3,  /* both, or none */
  FWDMETA_FORWARD_NATIVE = 4  /* set by the engine only */
};

/* Flags and numbers of a step beside its arrays, all int64. */
typedef int32_t fwdmeta_attr_t;
enum {
  FWDMETA_ATTR_FORWARD_MODE = 0,            /* derived; may be set to NATIVE, or back with 0 */
  FWDMETA_ATTR_EXIST_PREFILL = 1,           /* derived, read-only */
  FWDMETA_ATTR_REAL_BSZ = 2,                /* derived, read-only: num_live */
  FWDMETA_ATTR_IS_ZERO_SIZE = 3,            /* derived, read-only: T = 0 */
  FWDMETA_ATTR_STEP = 4,                    /* read-only: the step number, 0 for a captured build */
  FWDMETA_ATTR_GENERATION = 5,              /* read-only: the set of arrays */
  FWDMETA_ATTR_STEP_USE_CUDAGRAPH = 6,      /* the engine's: 0 or 1, default 0 */
  FWDMETA_ATTR_ROPE_ALREADY_APPLIED = 7,    /* likewise */
  FWDMETA_ATTR_IS_DUMMY_OR_PROFILE_RUN = 8, /* likewise */
  FWDMETA_ATTR_PRE_CACHES_LENGTH = 9,       /* the engine's: any int64 >= 0, default 0 */
  FWDMETA_ATTR_MOE_NUM_CHUNK = 10,          /* the engine's: >= 1, default 1 */
  FWDMETA_ATTR_MAX_MOE_NUM_CHUNK = 11,      /* the engine's: >= 1, default 1 */
  FWDMETA_ATTR_COUNT = 12                   /* closing sentinel */
};

/* Derived attributes read like counts with timeout 0: NOT_READY before the mirror is, EXPIRED after, and the step's
 * own status where it has an error. Setting a read-only attribute is INVALID_ARGUMENT, a value outside its range
 * OUT_OF_RANGE, an unknown attribute NOT_FOUND. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_get_attr(fwdmeta_meta_t meta, fwdmeta_attr_t attr, int64_t *out);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_set_attr(fwdmeta_meta_t meta, fwdmeta_attr_t attr, int64_t value);

/* The engine's attention backend: a name (1..63 printable ASCII characters, copied) and a borrowed pointer. Getting
 * it before it is set is NOT_SET; either output may be null. The name lives until the next set or the meta's end. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_set_attn_backend(fwdmeta_meta_t meta, const char *name, void *backend);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_get_attn_backend(fwdmeta_meta_t meta, const char **name, void **backend);

/* ------------------------------------------------------------------------------------------------ readers -- */

/* A reader on another stream. begin: `stream` waits for the build (an event recorded on the build's stream, no host
 * wait). end: the next eager build of the set waits in-stream for what `stream` holds at this point. A build of the set
 * between the two is BUSY. At most 16 readers a set may be open or pending; beyond that BUSY. NOT_CAPTURABLE while
 * either stream is being captured, UNAVAILABLE for the meta of a captured build, whose replays the engine orders
 * itself. An end without a begin is INVALID_ARGUMENT. Neither blocks. On the host backend both only count. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_reader_begin(fwdmeta_meta_t meta, fwdmeta_stream_t stream);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_reader_end(fwdmeta_meta_t meta, fwdmeta_stream_t stream);

/* -------------------------------------------------------------------------------------------- device view -- */

/*
 * A step's arrays as one argument of kernels: a struct of addresses and numbers that is passed by value. Its layout is
 * frozen and it has no struct_size, so a kernel compiled with it stays right with every later library; what it lacks
 * will come as a struct _v2 with a call of its own. fwdmeta/device.cuh has the functions over it, for device and host.
 *
 * An array that the configuration does not have is null (`outputs` leaves it out, or seq_lens_kv_local with cp_size 1);
 * the block counts, decoder_chunk_size and `counts` are always there. All are read-only, in the memory of the backend.
 */

/* The four mappings, as they index `mappings`. */
typedef int32_t fwdmeta_mapping_t;
enum {
  FWDMETA_MAPPING_DECODER = 0,
  FWDMETA_MAPPING_ENCODER = 1,
  FWDMETA_MAPPING_KV = 2,
  FWDMETA_MAPPING_PRE_CACHE = 3,
  FWDMETA_MAPPING_COUNT = 4 /* closing sentinel */
};

/* One mapping. */
typedef struct fwdmeta_device_mapping_v1 {
  const int32_t *batch_ids;  /* [capacity]; -1 at and past the count */
  const int32_t *tile_ids;   /* [capacity]; likewise */
  const int32_t *cu_tiles;   /* [max_batch_size + 1]; the total is repeated past the batch */
  const int32_t *num_blocks; /* [1]; the count */
  int32_t capacity;          /* entries of the lists: the grid that covers every step */
  int32_t tile_size;         /* query rows of a tile (decoder, encoder) or positions of a page (kv, pre_cache). 0: mla
                              * decoder, whose tiles are chunks of decoder_chunk_size keys */
} fwdmeta_device_mapping_v1_t;

/* One step. T is max_num_tokens. */
typedef struct fwdmeta_device_view_v1_t {
  fwdmeta_device_mapping_v1_t mappings[FWDMETA_MAPPING_COUNT]; /* by FWDMETA_MAPPING_* */
  const int32_t *decoder_chunk_size;                           /* [1]; 0 in append mode */
  const int32_t *cu_seqlens_q;                                 /* [max_batch_size + 1] */
  const int32_t *cu_seqlens_k;                                 /* [max_batch_size + 1] */
  const int32_t *seq_lens_kv;                                  /* [max_batch_size] */
  const int32_t *seq_lens_kv_local;                            /* [max_batch_size] */
  const int32_t *batch_id_per_token;                           /* [T] */
  const int64_t *position_ids;                                 /* [T] */
  const int32_t *mask_encoder_batch;                           /* [T] */
  const int64_t *ids_remove_padding;                           /* [T] */
  const int64_t *slot_mapping;        /* [T] of cache group 0; that of group g is slot_mapping_stride * g further */
  int64_t slot_mapping_stride;        /* elements; 0 with one group, or without the arrays */
  const int32_t *cu_seqlens_q_output; /* [max_batch_size + 1] */
  const int32_t *batch_id_per_token_output; /* [T] */
  const int32_t *logits_indices;            /* [T] */
  const int32_t *last_token_index;          /* [max_batch_size] */
  const int32_t *counts;                    /* [18], as FWDMETA_FIELD_COUNTS */
  int32_t max_batch_size;                   /* of the configuration */
  int32_t max_num_tokens;                   /* likewise */
  int32_t heads_per_kv_head;                /* num_q_heads / num_kv_heads: query rows of a token and KV head */
  int32_t num_cache_groups;                 /* 1 where the configuration has none */
} fwdmeta_device_view_v1_t;

/* The view of a meta's set of arrays. Its addresses never change, so a view taken once serves every build of that set,
 * and a captured kernel every replay. It holds nothing: it is good while the builder's memory is there, and what it
 * shows is overwritten by the set's next build, as behind an address from fwdmeta_meta_get. Of a meta of the host
 * backend the addresses are those of host memory. INVALID_HANDLE, INVALID_ARGUMENT; nothing is written then. Does not
 * block. Any thread, any time, also while capturing. */
FWDMETA_API fwdmeta_status_t fwdmeta_device_view_v1(fwdmeta_meta_t meta, fwdmeta_device_view_v1_t *out);

/* ------------------------------------------------------------------------------------------------- dlpack -- */

/*
 * DLPack: a built field as a tensor that other libraries take without a copy. What is handed out is DLPack's own struct
 * (https://dmlc.github.io/dlpack, the 0.x one, or version 1.0's with flags), so this header declares the two names
 * alone and dlpack.h, where the caller has it, completes them.
 *
 * The tensor has one dimension with stride 1, byte_offset 0, the dtype of fwdmeta_meta_get_field but for is_padding,
 * which is bool, and null data where it has no elements. The versioned one says that it is read-only. The older struct
 * cannot: whoever takes it must not write.
 *
 * The tensor holds the builder's memory until its deleter, which the taker calls once: metas, builder and stream may
 * end before. The deleter may be called on any thread and at any time, also while capturing and at exit, does not block
 * and makes no CUDA call; the library must still be loaded. The struct is freed with it.
 *
 * It holds the memory, not what is in it. As with an address from fwdmeta_meta_get, the set's next build overwrites the
 * arrays and the mirror's next round the *_cpu ones, whoever has tensors of them. A consumer on another stream is
 * protected by fwdmeta_meta_reader_begin and _end around its work; one on the build's stream is in order anyway.
 */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* DLPack's numbers of devices. */
typedef int32_t fwdmeta_dlpack_device_t;
enum {
  FWDMETA_DLPACK_CPU = 1,      /* every array of the host backend; device id 0 */
  FWDMETA_DLPACK_CUDA = 2,     /* device arrays; the id is the CUDA ordinal */
  FWDMETA_DLPACK_CUDA_HOST = 3 /* *_cpu arrays of the CUDA backend, in pinned memory; id 0 */
};

/* How much of the array a tensor has. */
typedef int32_t fwdmeta_dlpack_shape_t;
enum {
  FWDMETA_DLPACK_CAPACITY = 0, /* the whole array, as fwdmeta_meta_get_field */
  FWDMETA_DLPACK_LIVE = 1 /* the step's part: the mapping's count; batch_size, or one more of prefix sums; T of token
                           * arrays; num_output_tokens of output rows; all of the others. Needs the counts */
};

/* Which field, and how. */
typedef struct fwdmeta_dlpack_args {
  uint64_t struct_size;
  fwdmeta_field_t field;               /* FWDMETA_FIELD_* */
  int32_t group;                       /* of SLOT_MAPPING, else 0 */
  fwdmeta_dlpack_shape_t shape;        /* CAPACITY */
  fwdmeta_dlpack_device_t device_type; /* 0: the array's own. FWDMETA_DLPACK_CPU labels pinned memory so too, for takers
                                        * that do not know CUDA_HOST. Any other than the own is UNSUPPORTED */
} fwdmeta_dlpack_args_t;
#define FWDMETA_DLPACK_ARGS_INITIALIZER \
  { sizeof(fwdmeta_dlpack_args_t), 0, 0, FWDMETA_DLPACK_CAPACITY, 0 }

/* What a tensor of the field will say of its device. Either output may be null. Fails as fwdmeta_meta_get_field. Any
 * thread, any time. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_dlpack_device(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t *args,
                                                        fwdmeta_dlpack_device_t *out_type, int32_t *out_id);

/*
 * Makes a tensor for a consumer on `stream`, which waits on the device for all that the build's stream holds; the host
 * does not wait. `stream` is a number as in Python's __dlpack__: 1 is the legacy default stream, 2 the per-thread
 * default stream of the calling thread, any greater number a cudaStream_t, -1 no synchronisation. 0 and other negative
 * numbers are INVALID_ARGUMENT (Python's None is 1). On the host backend a build is complete when its call returns, and
 * the stream is ignored. On the build's own stream there is nothing to wait for. Otherwise it is NOT_CAPTURABLE while
 * either stream is being captured, UNAVAILABLE for the meta of a captured build, whose replays the engine orders
 * itself, and needs the build's stream to exist. *_cpu arrays are for the host once the counts can be read, and for a
 * kernel on `stream` at once.
 *
 * Allocates a small host object. Fails as fwdmeta_meta_get_field; a LIVE shape also as fwdmeta_meta_wait with timeout 0
 * (NOT_READY, EXPIRED, the status of a step with an error). On failure *out is not written. Any thread, any time.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_to_dlpack(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t *args,
                                                    int64_t stream, struct DLManagedTensor **out);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_to_dlpack_versioned(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t *args,
                                                              int64_t stream, struct DLManagedTensorVersioned **out);
/* The same without a stream: no CUDA call, nothing is waited for, the caller orders its reads behind the build. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_to_dlpack_no_sync(fwdmeta_meta_t meta, const fwdmeta_dlpack_args_t *args,
                                                            struct DLManagedTensor **out);
FWDMETA_API fwdmeta_status_t fwdmeta_meta_to_dlpack_versioned_no_sync(fwdmeta_meta_t meta,
                                                                      const fwdmeta_dlpack_args_t *args,
                                                                      struct DLManagedTensorVersioned **out);

/* --------------------------------------------------------------------------------------------------- dump -- */

/* How a dump is written. */
typedef int32_t fwdmeta_dump_format_t;
enum { FWDMETA_DUMP_JSON = 0, FWDMETA_DUMP_TEXT = 1 };
/* Receives a piece of a dump, not null-terminated; a non-zero return stops it (UNAVAILABLE). No lock is held. */
typedef int32_t (*fwdmeta_write_callback_t)(const char *data, size_t size, void *user);

/* Writes the counts, with the status that waiting for them has, the attributes and the attention backend, and each
 * tensor's dtype, shape, device, address and content (elided when long). Synchronises the step's stream, so it may
 * block, and is NOT_CAPTURABLE while that stream is being captured. */
FWDMETA_API fwdmeta_status_t fwdmeta_meta_dump(fwdmeta_meta_t meta, fwdmeta_dump_format_t format,
                                               fwdmeta_write_callback_t write, void *user);

/* ------------------------------------------------------------------------------------------------- metrics -- */

/*
 * Writes what this copy of the library has counted since it was loaded, over all threads and builders, in the text
 * format 0.0.4 of Prometheus: what a scrape of an engine is answered with.
 *
 * - fwdmeta_builds_total{backend, lengths, mode}: successful builds; backend host or cuda, lengths host or device
 * (their memory kind), mode eager or captured. Each slice of fwdmeta_build_slices is one, a replay of a captured build
 * is none.
 * - fwdmeta_errors_total{status}: calls that returned a status other than OK, polls that were NOT_READY included.
 * - fwdmeta_host_waits_total: builds with host lengths that had to wait for a staging entry.
 * - fwdmeta_memory_bytes{memory}: memory of builders (device, pinned, host), as in fwdmeta_capacities_t, until it is
 *   freed, which may be after fwdmeta_builder_destroy.
 * - fwdmeta_live_handles{type}: handles not destroyed yet; the builders of a slicer are among the builders.
 *
 * All label values are there from the start, with 0. Counting takes no lock; the numbers are read one after the other,
 * so those of calls that run meanwhile may be in some and not in others. `write` gets pieces of the text and may stop
 * it as in fwdmeta_meta_dump. Does not block. Any thread, any time, also while capturing.
 */
FWDMETA_API fwdmeta_status_t fwdmeta_metrics_write(fwdmeta_write_callback_t write, void *user);

#ifdef __cplusplus
}
#endif

#include "fwdmeta_context.h"

#endif /* FWDMETA_H */

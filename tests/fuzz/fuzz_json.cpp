// The command's readers of batch, graphs, ranks, slices and trace files, on any text, and what the command then shows
// of those that are of the format and small.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "batch_file.h"
#include "calls.h"
#include "errors.h"
#include "graphs.h"
#include "inspect_output.h"
#include "inspect_picture.h"
#include "ranks.h"
#include "replay.h"
#include "replay_picture.h"
#include "slices.h"
#include "trace.h"

namespace fwdmeta_fuzz {
namespace {

using namespace fwdmeta::command;

// A file of the text, in memory.
class File {
 public:
  File(const uint8_t* data, size_t size) : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    FUZZ_CHECK(descriptor_ >= 0 && write(descriptor_, data, size) == static_cast<ssize_t>(size));
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  ~File() { close(descriptor_); }
  const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

// Runs `body`, which may refuse the file or its numbers, in words that a terminal obeys nothing of.
template <class Body>
bool Accepts(Body body) {
  const auto check_words = [](const std::string& words) {
    for (const char c : words) FUZZ_CHECK((c >= 0x20 && c < 0x7f) || c == '\n');
  };
  try {
    body();
    return true;
  } catch (const InputError& error) {
    check_words(error.what());
    FUZZ_CHECK(error.what()[0] != '\0');
  } catch (const LibraryError& error) {
    check_words(error.what());
    FUZZ_CHECK(error.status() > FWDMETA_OK && error.status() < FWDMETA_STATUS_COUNT);
    FUZZ_CHECK(error.status() != FWDMETA_INTERNAL);
  } catch (const std::bad_alloc&) {
  }
  return false;
}

void CheckJson(const Json& json) {
  const Json again = Json::parse(to_text(json));
  FUZZ_CHECK(again == json && again.contains("schema") && again.contains("status"));
}

bool Small(int64_t value, int64_t most) { return value <= most; }

void Inspect(const BatchFile& file) {
  const fwdmeta_config_t& c = file.config;
  if (!Small(c.max_batch_size, 64) || !Small(c.max_num_tokens, 1024) || !Small(c.max_model_len, 1 << 14)) return;
  Accepts([&] {
    const CapacityReport capacities = inspect_capacities(file, FWDMETA_BACKEND_HOST);
    CheckJson(to_json(capacities));
    to_table(capacities);
    const fwdmeta_capacities_t& sizes = capacities.capacities;
    if (sizes.host_bytes > 1 << 20) return;
    for (const bool full : {false, true}) {
      const Inspection inspection = inspect(file, FWDMETA_BACKEND_HOST, full);
      CheckJson(to_json(inspection, file.groups.has_value()));
      to_table(inspection, file);
      if (!full) to_picture(inspection, file, capacities);
    }
  });
}

bool Small(const GraphsConfig& config) {
  if (!Small(config.values.max_num_tokens, 1 << 12)) return false;
  return !config.query_lens || config.query_lens->size() <= 16;
}

void Dispatch(const GraphsFile& file) {
  if (!Small(file.config)) return;
  Accepts([&] {
    const GraphsReport report = dispatch(file);
    CheckJson(to_json(report));
    to_table(report, file);
  });
}

void Agree(const RanksFile& file) {
  if (!Small(file.sp_size, 64) || (file.table && !Small(file.graphs))) return;
  Accepts([&] {
    try {
      const RanksReport report = report_ranks(file);
      CheckJson(to_json(report));
      to_table(report, file);
    } catch (const RankMismatch& mismatch) {
      CheckJson(to_json(mismatch));
    }
  });
}

void Slice(const SlicesFile& file) {
  if (!Small(file.args.num_padded_reqs, 1 << 12)) return;
  Accepts([&] {
    const std::vector<ShownSlice> slices = plan_slices(file);
    CheckJson(to_json(slices));
    to_table(slices, file);
  });
}

void Replay(std::vector<Request> requests) {
  if (requests.size() > 8) return;
  for (const Request& request : requests) {
    if (!Small(request.prompt_tokens, 200) || !Small(request.output_tokens, 20)) return;
  }
  ReplayOptions options;
  options.backend = FWDMETA_BACKEND_HOST;
  options.max_batch = 4;
  options.token_budget = 64;
  options.chunk = 48;
  options.block_size = 16;
  options.steps = 8;
  options.check = true;
  options.spec = static_cast<int64_t>(requests.size() % 3);
  Accepts([&] {
    const ReplayReport report = replay(std::move(requests), options);
    FUZZ_CHECK(report.mismatches == 0);
    CheckJson(to_json(report));
    to_table(report, true);
    to_picture(report);
  });
}

void Run(const File& file) {
  BatchFile batch;
  if (Accepts([&] { batch = read_batch_file(file.path()); })) Inspect(batch);
  GraphsFile graphs;
  if (Accepts([&] { graphs = read_graphs_file(file.path()); })) Dispatch(graphs);
  RanksFile ranks;
  if (Accepts([&] { ranks = read_ranks_file(file.path()); })) Agree(ranks);
  SlicesFile slices;
  if (Accepts([&] { slices = read_slices_file(file.path()); })) Slice(slices);
  std::vector<Request> requests;
  if (Accepts([&] { requests = read_trace(file.path()); })) Replay(std::move(requests));
}

}  // namespace
}  // namespace fwdmeta_fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return fwdmeta_log_set_level(FWDMETA_LOG_ERROR); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fwdmeta_fuzz::Run({data, size});
  return 0;
}

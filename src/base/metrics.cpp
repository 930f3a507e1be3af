#include "base/metrics.h"

#include <atomic>
#include <string>

namespace fwdmeta {
namespace {

using Counter = std::atomic<int64_t>;

// The builds there can be: host lengths cannot be captured, and the host backend captures nothing.
constexpr const char* kBuilds[] = {
    "backend=\"host\",lengths=\"device\",mode=\"eager\"",    "backend=\"host\",lengths=\"host\",mode=\"eager\"",
    "backend=\"cuda\",lengths=\"device\",mode=\"eager\"",    "backend=\"cuda\",lengths=\"host\",mode=\"eager\"",
    "backend=\"cuda\",lengths=\"device\",mode=\"captured\"",
};
constexpr size_t kBuildKinds = sizeof(kBuilds) / sizeof(kBuilds[0]);
constexpr const char* kMemories[] = {"device", "pinned", "host"};
// By the number that a handle table has.
constexpr const char* kHandles[kHandleTypes] = {nullptr,     "builder", "meta",   "dispatcher",
                                                "transport", "slicer",  "layers", "context"};

Counter builds[kBuildKinds];
Counter errors[FWDMETA_STATUS_COUNT];
Counter host_waits;
Counter bytes[3];
Counter handles[kHandleTypes];

void Add(Counter* counter, int64_t count) { counter->fetch_add(count, std::memory_order_relaxed); }

class Exposition {
 public:
  void Family(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void Sample(const std::string& labels, const Counter& value) {
    text_ += name_ + (labels.empty() ? "" : "{" + labels + "}") + " " +
             std::to_string(value.load(std::memory_order_relaxed)) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

std::string Label(const char* name, const char* value) { return std::string(name) + "=\"" + value + "\""; }

}  // namespace

void CountBuild(fwdmeta_backend_t backend, bool host_lengths, bool captured) {
  Add(&builds[captured ? 4 : (backend == FWDMETA_BACKEND_CUDA ? 2 : 0) + (host_lengths ? 1 : 0)], 1);
}

void CountError(Status status) {
  if (status > FWDMETA_OK && status < FWDMETA_STATUS_COUNT) Add(&errors[status], 1);
}

void CountHostWait() { Add(&host_waits, 1); }

void AddLiveHandles(size_t type, int64_t count) { Add(&handles[type], count); }

void AddBytes(Memory memory, int64_t count) { Add(&bytes[static_cast<int>(memory)], count); }

Status WriteMetrics(fwdmeta_write_callback_t write, void* user) {
  if (write == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "write is null");
  Exposition out;
  out.Family("fwdmeta_builds_total", "counter", "Builds enqueued or, captured, recorded; those of slices included.");
  for (size_t i = 0; i < kBuildKinds; ++i) out.Sample(kBuilds[i], builds[i]);
  out.Family("fwdmeta_errors_total", "counter", "Calls that returned another status than OK.");
  for (Status i = FWDMETA_OK + 1; i < FWDMETA_STATUS_COUNT; ++i) out.Sample(Label("status", StatusName(i)), errors[i]);
  out.Family("fwdmeta_host_waits_total", "counter", "Builds with host lengths that waited for a staging entry.");
  out.Sample("", host_waits);
  out.Family("fwdmeta_memory_bytes", "gauge", "Memory of the arrays, the mirror and the staging of all builders.");
  for (size_t i = 0; i < 3; ++i) out.Sample(Label("memory", kMemories[i]), bytes[i]);
  out.Family("fwdmeta_live_handles", "gauge", "Handles that have not been destroyed; builders of slices included.");
  for (size_t i = 1; i < kHandleTypes; ++i) out.Sample(Label("type", kHandles[i]), handles[i]);
  if (write(out.text().data(), out.text().size(), user) == 0) return FWDMETA_OK;
  return Fail(FWDMETA_UNAVAILABLE, "the write callback stopped the metrics");
}

}  // namespace fwdmeta

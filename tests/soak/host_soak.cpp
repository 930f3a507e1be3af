// The host backend: threads with builders of their own, each step compared on the thread that built it.
#include <cstring>
#include <thread>

#include "harness.h"
#include "soak.h"

namespace fwdmeta_soak {
namespace {

using fwdmeta_test::CountingAllocator;
using fwdmeta_test::Memory;

constexpr int64_t kStepsOfALife = 4000;

// One builder's life: steps of all shapes, by both memory kinds, over rotating sets.
class HostLife {
 public:
  HostLife(const Case& of, uint64_t seed, CountingAllocator* memory) : of_(of), seed_(seed) {
    std::vector<fwdmeta_group_config_t> groups;
    fwdmeta_config_t config = fwdmeta_test::ToC(of.config, FWDMETA_BACKEND_HOST, &groups);
    config.host_allocator = memory->Get();
    SOAK_OK(fwdmeta_builder_create(&config, &builder_));
  }
  ~HostLife() { fwdmeta_builder_destroy(builder_); }
  HostLife(const HostLife&) = delete;
  HostLife& operator=(const HostLife&) = delete;

  void Step(int64_t number, Progress* progress) {
    const Pool& pool = of_.pools[static_cast<size_t>(PickBatch(seed_ + 1, number, of_.pools.size()))];
    const int64_t picked = pool.Pick(seed_, number);
    const fwdmeta_status_t want = pool.statuses[static_cast<size_t>(picked)];
    BatchArgs args;
    Point(of_, pool, pool.inputs.data() + picked * pool.input_bytes, &args);
    args.batch.memory_kind = number % 3 == 0 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE;
    fwdmeta_meta_t meta = 0;
    int64_t step = 0;
    const fwdmeta_status_t status = fwdmeta_build(builder_, &args.batch, &meta, &step);
    progress->Add(1);
    if (args.batch.memory_kind == FWDMETA_MEMORY_HOST && want != FWDMETA_OK) {  // refused, and nothing is written
      if (status != want) progress->AddMismatches(1, std::string("a refused build: ") + fwdmeta_status_name(status));
      return;
    }
    Check(status, "fwdmeta_build");
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    const fwdmeta_status_t of_step = fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts);
    const std::string differ = CompareCounts(pool, picked, step, of_step, counts);
    if (!differ.empty()) progress->AddMismatches(1, differ);
    CompareArrays(pool, picked, step, meta, progress);
    SOAK_OK(fwdmeta_meta_destroy(meta));
  }

  // Whether the comparison sees one wrong entry of each array.
  void Probe() {
    const Pool& pool = of_.pools[0];
    Pool one;  // of the first good batch alone
    int64_t good = 0;
    while (pool.statuses[static_cast<size_t>(good)] != FWDMETA_OK) ++good;
    one.slots = pool.slots;
    one.tokens = pool.tokens;
    one.array_bytes = pool.array_bytes;
    one.arrays.assign(pool.arrays.begin() + good * pool.array_bytes,
                      pool.arrays.begin() + (good + 1) * pool.array_bytes);
    BatchArgs args;
    Point(of_, pool, pool.inputs.data() + good * pool.input_bytes, &args);
    fwdmeta_meta_t meta = 0;
    int64_t step = 0;
    SOAK_OK(fwdmeta_build(builder_, &args.batch, &meta, &step));
    for (const ArrayPlace& place : of_.places) {
      if (place.count == 0) continue;
      Progress seen{Options()};
      char& byte = one.arrays[static_cast<size_t>(place.offset + (place.count - 1) * place.element_size)];
      const char kept = byte;
      byte = static_cast<char>(~byte);
      CompareArrays(one, 0, step, meta, &seen);
      byte = kept;
      // The last entry of counts_i64 is the step, which the comparison puts in itself.
      const int64_t want = place.field == FWDMETA_FIELD_COUNTS_I64 ? 0 : 1;
      if (seen.mismatches() != want) throw std::runtime_error("the comparison is blind");
    }
    SOAK_OK(fwdmeta_meta_destroy(meta));
  }

 private:
  void CompareArrays(const Pool& pool, int64_t picked, int64_t step, fwdmeta_meta_t meta, Progress* progress) {
    const char* want = pool.arrays.data() + picked * pool.array_bytes;
    for (const ArrayPlace& place : of_.places) {
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      SOAK_OK(fwdmeta_meta_get_field(meta, place.field, place.group, &tensor));
      const auto bytes = static_cast<size_t>(place.count * place.element_size);
      int64_t i64[3];
      const char* expected = want + place.offset;
      if (place.field == FWDMETA_FIELD_COUNTS_I64) {
        std::memcpy(i64, expected, sizeof i64);
        i64[2] = step;
        expected = reinterpret_cast<const char*>(i64);
      }
      const bool shaped = tensor.shape[0] == place.count && tensor.dtype_bits == 8 * place.element_size;
      if (shaped && (bytes == 0 || std::memcmp(expected, tensor.data, bytes) == 0)) continue;
      progress->AddMismatches(1, std::string(fwdmeta_field_name(place.field)) + " of batch " + std::to_string(picked) +
                                     " of " + std::to_string(pool.slots) + " slots, step " + std::to_string(step) +
                                     ", case " + of_.name);
    }
    progress->AddArrays(static_cast<int64_t>(of_.places.size()));
  }

  const Case& of_;
  const uint64_t seed_;
  fwdmeta_builder_t builder_ = 0;
};

}  // namespace

int RunOnHost(const std::vector<Case>& cases, const Options& options) {
  CountingAllocator memory(Memory::kHost);
  Progress progress(options);
  for (const Case& of : cases) HostLife(of, options.seed, &memory).Probe();
  progress.Show(0);
  std::atomic<int64_t> lives{0};
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      try {
        for (size_t life = 0; !progress.Done(); ++life) {
          const Case& of = cases[(life + static_cast<size_t>(t)) % cases.size()];
          HostLife host(of, options.seed + static_cast<uint64_t>(++lives) * 2, &memory);
          for (int64_t step = 1; step <= kStepsOfALife && !progress.Done(); ++step) {
            host.Step(step, &progress);
            if (t == 0 && step % 64 == 0) progress.Show(0);
          }
          if (t == 0 && life % cases.size() == cases.size() - 1) progress.Rest(0);
        }
      } catch (const std::exception& error) {
        std::lock_guard<std::mutex> lock(mutex);
        failure = error.what();
        progress.AddMismatches(1, failure);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  progress.Rest(0);
  return progress.Report("host", static_cast<int64_t>(memory.bytes()), lives) ? 0 : 1;
}

}  // namespace fwdmeta_soak

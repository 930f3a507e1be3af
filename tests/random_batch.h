// Seeded random configurations and batches, good and bad.
#ifndef FWDMETA_TESTS_RANDOM_BATCH_H_
#define FWDMETA_TESTS_RANDOM_BATCH_H_

#include <random>

#include "reference.h"

namespace fwdmeta_test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Uniform in [low, high].
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool Chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  template <typename T>
  T Pick(std::initializer_list<T> of) {
    return of.begin()[Int(0, static_cast<int64_t>(of.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// Every parameter of contract §1 is drawn, most often small. `max_slots` bounds max_batch_size.
reference::Config RandomConfig(Random& random, int64_t max_slots);

// A good batch of `slots` slots: idle ones (stale too), prompts whole and chunked, decodes with and without drafts;
// with or without tables (short, ragged, with holes), ids, drafts and padding.
reference::Batch RandomBatch(Random& random, const reference::Config& config, int64_t slots);
inline reference::Batch RandomBatch(Random& random, const reference::Config& config) {
  return RandomBatch(
      random, config,
      random.Int(0, random.Chance(0.5) ? config.max_batch_size : std::min<int64_t>(config.max_batch_size, 4)));
}

// Breaks a rule of contract §7, chosen at random, where the configuration allows it.
void Spoil(Random& random, const reference::Config& config, reference::Batch* batch);

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_RANDOM_BATCH_H_

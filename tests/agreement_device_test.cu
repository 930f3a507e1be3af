// "Agreement, a pure function of the gathered table, __host__ __device__" (contract-context §4): a kernel and the
// library on the host conclude the same from the same tables.
#include <cstring>
#include <map>
#include <memory>

#include "context/agreement.h"
#include "random_ranks.h"

namespace fwdmeta_test {
namespace {

// A table of rows among those of its launch, and who agrees on it.
struct Job {
  int64_t first_row;
  int64_t num_ranks;
  int64_t num_slices;
  int64_t table;
};

// A thread a job. tokens are where the rows are; agreements and statuses are [num_jobs].
__global__ void AgreeOnDevice(const fwdmeta::DispatchTable* tables, const Job* jobs, int64_t num_jobs,
                              const fwdmeta_rank_row_t* rows, int64_t* tokens, fwdmeta_agreement_t* agreements,
                              fwdmeta_status_t* statuses) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_jobs) return;
  const Job& job = jobs[i];
  statuses[i] = fwdmeta::Agree(tables[job.table], rows + job.first_row, job.num_ranks, job.num_slices,
                               tokens + job.first_row, &agreements[i]);
}

// Arrays on the device, until the object ends.
class DeviceArrays {
 public:
  template <class T>
  T* Put(const std::vector<T>& values) {
    buffers_.push_back(std::make_unique<Buffer>(FWDMETA_BACKEND_CUDA, values.size() * sizeof(T)));
    Upload(FWDMETA_BACKEND_CUDA, buffers_.back()->data(), values.data(), values.size() * sizeof(T));
    return static_cast<T*>(buffers_.back()->data());
  }
  template <class T>
  static void Get(const T* from, std::vector<T>* values) {
    Download(FWDMETA_BACKEND_CUDA, values->data(), from, values->size() * sizeof(T));
  }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// A dispatcher of which some graphs are captured, and its table on the device, made of what the API tells of it.
class SharedDispatcher : public Dispatcher {
 public:
  SharedDispatcher(const GraphSetup& setup, bool captured, DeviceArrays* arrays) : Dispatcher(setup, captured) {
    fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_dispatcher_get_info(handle(), &info));
    int64_t count = info.num_piecewise_keys + info.num_full_keys;
    std::vector<fwdmeta_graph_key_t> keys(static_cast<size_t>(count));
    EXPECT_OK(fwdmeta_dispatcher_get_keys(handle(), keys.data(), count, &count));

    using Flags = std::map<int32_t, uint8_t>;          // whether captured, by the case of active LoRAs
    std::map<int32_t, Flags> piecewise;                // by size
    std::map<int32_t, std::map<int32_t, Flags>> full;  // by query length, by size
    for (const int64_t query_len : setup.query_lens) full[static_cast<int32_t>(query_len)];
    if (setup.mode == FWDMETA_GRAPH_FULL) full = {{0, {}}};
    Flags cases = {{0, 0}};
    for (size_t i = 0; i < keys.size(); ++i) {
      const fwdmeta_batch_descriptor_t& key = keys[i].descriptor;
      const bool flag = captured || i % 3 != 0;
      if (!captured && flag) {
        EXPECT_OK(fwdmeta_dispatcher_mark_captured(handle(), &keys[i]));
      }
      cases[key.num_active_loras] = 0;
      if (keys[i].mode == FWDMETA_GRAPH_PIECEWISE) {
        piecewise[key.num_tokens][key.num_active_loras] = flag;
      } else {
        full[key.uniform ? key.num_tokens / key.num_reqs : 0][key.num_tokens][key.num_active_loras] = flag;
      }
    }

    const auto ladder = [arrays](int32_t query_len, const std::map<int32_t, Flags>& sizes) {
      std::vector<int32_t> tokens;
      std::vector<uint8_t> flags;
      for (const auto& [size, of_cases] : sizes) {
        tokens.push_back(size);
        for (const auto& [loras, flag] : of_cases) flags.push_back(flag);
      }
      return fwdmeta::Ladder{query_len, static_cast<int32_t>(tokens.size()), arrays->Put(tokens), arrays->Put(flags)};
    };
    std::vector<int32_t> case_list;
    for (const auto& entry : cases) case_list.push_back(entry.first);
    std::vector<fwdmeta::Ladder> ladders;
    for (const auto& [query_len, sizes] : full) ladders.push_back(ladder(query_len, sizes));
    table_ = {info.resolved_mode,
              static_cast<int32_t>(setup.max_num_seqs),
              static_cast<int32_t>(setup.max_loras),
              static_cast<int32_t>(case_list.size()),
              arrays->Put(case_list),
              ladder(0, piecewise),
              static_cast<int32_t>(ladders.size()),
              arrays->Put(ladders)};
  }
  const fwdmeta::DispatchTable& table() const { return table_; }

 private:
  fwdmeta::DispatchTable table_;
};

// What breaks a rule, or gives other ranks another step.
void SpoilRow(RandomTables* random, Rows* rows) {
  fwdmeta_rank_row_t& row = (*rows)[static_cast<size_t>(random->Between(0, static_cast<int64_t>(rows->size()) - 1))];
  switch (random->Between(0, 6)) {
    case 0:
      row.config ^= uint64_t{1} << 63;
      break;
    case 1:
      row.step = -1;
      break;
    case 2:
      row.num_tokens = int64_t{1} << 31;
      break;
    case 3:
      row.max_mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
      break;
    case 4:
      row.wants_slices = -1;
      break;
    case 5:
      row.reserved[4] = 1;
      break;
    default:  // more than max_num_seqs, an error of the dispatch
      row.num_tokens = row.num_reqs = 65;
  }
}

// 10,000 tables of 1 to 4096 ranks, some of them bad.
TEST(AgreementOnDevice, EqualsTheHosts) {
  FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
  DeviceArrays for_all;
  std::vector<std::unique_ptr<SharedDispatcher>> dispatchers;
  std::vector<fwdmeta::DispatchTable> tables;
  for (const bool captured : {true, false}) {
    for (GraphSetup setup : RandomSetups()) {
      if (!captured) setup.max_loras = 3;
      dispatchers.push_back(std::make_unique<SharedDispatcher>(setup, captured, &for_all));
      tables.push_back(dispatchers.back()->table());
    }
  }
  const fwdmeta::DispatchTable* device_tables = for_all.Put(tables);

  constexpr int kTables = 10000, kTablesOfALaunch = 500, kThreads = 32;
  RandomTables random;
  std::map<std::string, int> seen;
  int sliced = 0, skipped = 0;
  for (int first = 0; first < kTables; first += kTablesOfALaunch) {
    std::vector<Job> jobs;
    Rows rows;
    for (int i = first; i < first + kTablesOfALaunch; ++i) {
      Rows next = random.Next();
      if (random.OneIn(8)) SpoilRow(&random, &next);
      jobs.push_back({static_cast<int64_t>(rows.size()), static_cast<int64_t>(next.size()), random.Between(1, 4),
                      i % static_cast<int64_t>(tables.size())});
      rows.insert(rows.end(), next.begin(), next.end());
    }
    std::vector<int64_t> tokens(rows.size(), -9), want_tokens = tokens;
    std::vector<fwdmeta_agreement_t> agreements(jobs.size(), FWDMETA_AGREEMENT_INITIALIZER);
    const std::vector<fwdmeta_agreement_t> untouched = agreements;
    std::vector<fwdmeta_status_t> statuses(jobs.size(), FWDMETA_INTERNAL);
    DeviceArrays arrays;
    const Job* device_jobs = arrays.Put(jobs);
    const fwdmeta_rank_row_t* device_rows = arrays.Put(rows);
    int64_t* device_tokens = arrays.Put(tokens);
    fwdmeta_agreement_t* device_agreements = arrays.Put(agreements);
    fwdmeta_status_t* device_statuses = arrays.Put(statuses);
    AgreeOnDevice<<<(kTablesOfALaunch + kThreads - 1) / kThreads, kThreads>>>(
        device_tables, device_jobs, kTablesOfALaunch, device_rows, device_tokens, device_agreements, device_statuses);
    ASSERT_EQ(cudaSuccess, cudaGetLastError());
    DeviceArrays::Get(device_tokens, &tokens);
    DeviceArrays::Get(device_agreements, &agreements);
    DeviceArrays::Get(device_statuses, &statuses);

    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE("table " + std::to_string(first + i) + " of " + std::to_string(jobs[i].num_ranks) + " ranks");
      fwdmeta_agreement_t want = untouched[i];
      const fwdmeta_status_t status =
          fwdmeta_agree(dispatchers[static_cast<size_t>(jobs[i].table)]->handle(), rows.data() + jobs[i].first_row,
                        jobs[i].num_ranks, jobs[i].num_slices, want_tokens.data() + jobs[i].first_row, &want);
      ASSERT_EQ(Name(status), Name(statuses[i]));
      ASSERT_EQ(0, std::memcmp(&want, &agreements[i], sizeof want))
          << "mode " << want.mode << " and " << agreements[i].mode << ", tokens " << want.descriptor.num_tokens
          << " and " << agreements[i].descriptor.num_tokens;
      ++seen[status == FWDMETA_OK ? fwdmeta_dispatch_reason_name(want.reason) : Name(status)];
      sliced += want.sliced;
      skipped += want.skip;
    }
    ASSERT_EQ(want_tokens, tokens) << "tables from " << first;
  }
  for (const char* outcome : {"OK", "MODE_NONE", "ZERO_TOKENS", "ABOVE_LARGEST", "NOT_UNIFORM", "NO_FULL_SIZE",
                              "NOT_ALLOWED", "NOT_CAPTURED", "INVALID_ARGUMENT", "RANK_MISMATCH"}) {
    EXPECT_GT(seen[outcome], 20) << outcome;
  }
  EXPECT_GT(sliced, 500);
  EXPECT_GT(skipped, 50);
}

}  // namespace
}  // namespace fwdmeta_test

// docs/fields.md says of every field what the library says: its name, dtype, shape and tail, and whether it can be left
// out. docs/guides/errors.md has every status.
#include <fstream>
#include <sstream>

#include "harness.h"

namespace fwdmeta_test {
namespace {

struct Row {
  std::string name, dtype, shape, tail;
  bool always;
};

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// The rows of the page's tables of fields: | `name` • | dtype | [shape] | tail | meaning |
std::vector<Row> ReadPage() {
  std::ifstream page(FWDMETA_SOURCE_DIR "/docs/fields.md");
  EXPECT_TRUE(page.is_open());
  std::vector<Row> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    std::istringstream text(line.substr(1));
    for (std::string cell; std::getline(text, cell, '|');) cells.push_back(Trimmed(cell));
    if (cells.size() != 5) {
      ADD_FAILURE() << "not five cells: " << line;
      continue;
    }
    const size_t end = cells[0].find('`', 1);
    EXPECT_FALSE(cells[4].empty()) << line;
    rows.push_back({cells[0].substr(1, end - 1), cells[1], cells[2], cells[3], cells[0].size() > end + 1});
  }
  return rows;
}

// Every number that a shape or a tail is named by is another one.
class FieldsPage : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.backend = FWDMETA_BACKEND_HOST;
    config_.max_batch_size = 5, config_.max_num_tokens = 40, config_.max_model_len = 1000;
    config_.num_q_heads = 32, config_.num_kv_heads = 8, config_.cp_size = 2;
    config_.pad_token_id = 77, config_.pad_seq_len = 55;
    ASSERT_OK(fwdmeta_get_capacities(&config_, nullptr, &capacities_));
  }
  void TearDown() override {
    EXPECT_OK(fwdmeta_meta_destroy(meta_));
    EXPECT_OK(fwdmeta_builder_destroy(builder_));
  }
  void Build() {
    ASSERT_OK(fwdmeta_builder_create(&config_, &builder_));
    const int32_t encoder[] = {0, 12, 0}, decoder[] = {30, 70, 9}, this_time[] = {2, 12, 0};
    fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
    batch.memory_kind = FWDMETA_MEMORY_HOST, batch.batch_size = kSlots;
    batch.seq_lens_encoder = encoder, batch.seq_lens_decoder = decoder, batch.seq_lens_this_time = this_time;
    ASSERT_OK(fwdmeta_build(builder_, &batch, &meta_, nullptr));
  }
  int64_t Length(const std::string& shape) const {
    const std::map<std::string, int64_t> lengths = {
        {"[decoder]", capacities_.decoder}, {"[encoder]", capacities_.encoder},
        {"[kv]", capacities_.kv},           {"[pre_cache]", capacities_.pre_cache},
        {"[B]", config_.max_batch_size},    {"[B+1]", config_.max_batch_size + 1},
        {"[T]", config_.max_num_tokens}};
    const auto found = lengths.find(shape);
    return found != lengths.end() ? found->second : std::stoll(shape.substr(1));
  }
  static std::string Dtype(const fwdmeta_tensor_t& tensor) {
    return (tensor.dtype_code == FWDMETA_DTYPE_INT ? "i" : "u") + std::to_string(tensor.dtype_bits);
  }
  static int64_t Entry(const fwdmeta_tensor_t& tensor, int64_t i) {
    if (tensor.dtype_bits == 64) return static_cast<const int64_t*>(tensor.data)[i];
    if (tensor.dtype_bits == 32) return static_cast<const int32_t*>(tensor.data)[i];
    return static_cast<const uint8_t*>(tensor.data)[i];
  }

  static constexpr int64_t kSlots = 3;
  fwdmeta_config_t config_ = FWDMETA_CONFIG_INITIALIZER;
  fwdmeta_capacities_t capacities_ = FWDMETA_CAPACITIES_INITIALIZER;
  fwdmeta_builder_t builder_ = 0;
  fwdmeta_meta_t meta_ = 0;
};

TEST_F(FieldsPage, HasEveryFieldInTheOrderOfTheNumbers) {
  const std::vector<Row> rows = ReadPage();
  ASSERT_EQ(rows.size(), size_t{FWDMETA_FIELD_COUNT});
  for (int32_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    EXPECT_EQ(rows[field].name, fwdmeta_field_name(field));
  }
}

TEST_F(FieldsPage, SaysDtypesAndShapes) {
  Build();
  for (const Row& row : ReadPage()) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    ASSERT_OK(fwdmeta_meta_get(meta_, row.name.c_str(), &tensor));
    EXPECT_EQ(row.dtype, Dtype(tensor)) << row.name;
    EXPECT_EQ(tensor.ndim, 1) << row.name;
    EXPECT_EQ(Length(row.shape), tensor.shape[0]) << row.name << " " << row.shape;
  }
}

// A build that fills no array leaves the tail's value in the last entry of each; a total is that of the last slot.
TEST_F(FieldsPage, SaysTails) {
  Build();
  const std::map<std::string, int64_t> values = {
      {"-1", -1}, {"0", 0}, {"1", 1}, {"pad_token_id", 77}, {"pad_seq_len", 55}};
  for (const Row& row : ReadPage()) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    ASSERT_OK(fwdmeta_meta_get(meta_, row.name.c_str(), &tensor));
    if (row.tail.empty()) {
      EXPECT_EQ(row.shape.find_first_not_of("[]0123456789"), std::string::npos) << row.name << " has a tail";
      continue;
    }
    const int64_t last = Entry(tensor, tensor.shape[0] - 1);
    if (row.tail == "total") {
      EXPECT_EQ(last, Entry(tensor, kSlots)) << row.name;
      EXPECT_EQ(Entry(tensor, 0), 0) << row.name;
    } else {
      ASSERT_EQ(values.count(row.tail), 1u) << row.name << " " << row.tail;
      EXPECT_EQ(last, values.at(row.tail)) << row.name;
    }
  }
}

TEST_F(FieldsPage, MarksWhatIsThereWhateverOutputsSays) {
  config_.outputs = 0;
  Build();
  for (const Row& row : ReadPage()) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    EXPECT_STATUS(row.always ? FWDMETA_OK : FWDMETA_NOT_FOUND, fwdmeta_meta_get(meta_, row.name.c_str(), &tensor))
        << row.name;
  }
}

TEST(ErrorsPage, HasEveryStatusInOrder) {
  std::ifstream page(FWDMETA_SOURCE_DIR "/docs/guides/errors.md");
  std::string line;
  while (std::getline(page, line) && line != "## Statuses") continue;
  for (int32_t status = 0; status < FWDMETA_STATUS_COUNT; ++status) {
    while (std::getline(page, line) && line.rfind("| `", 0) != 0) continue;
    EXPECT_EQ(line.substr(0, line.find('`', 3) + 1), "| `" + std::string(fwdmeta_status_name(status)) + "`");
  }
  EXPECT_TRUE(std::getline(page, line) && line.empty()) << line;
}

}  // namespace
}  // namespace fwdmeta_test

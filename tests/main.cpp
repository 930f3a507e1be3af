// Runs the tests of one executable. 77, CTest's skip, where every test was skipped; each says why on its own line.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const auto& unit = *::testing::UnitTest::GetInstance();
  if (failed == 0 && unit.test_to_run_count() > 0 && unit.skipped_test_count() == unit.test_to_run_count()) return 77;
  return failed;
}

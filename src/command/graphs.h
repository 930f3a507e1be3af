#ifndef FWDMETA_COMMAND_GRAPHS_H
#define FWDMETA_COMMAND_GRAPHS_H

#include <fwdmeta.h>

#include <string>
#include <vector>

#include "graphs_file.h"
#include "output.h"

namespace fwdmeta::command {

// A dispatcher with every key captured.
class Dispatcher {
 public:
  explicit Dispatcher(const GraphsConfig& config);
  ~Dispatcher() { fwdmeta_dispatcher_destroy(handle_); }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  fwdmeta_dispatcher_t get() const { return handle_; }

 private:
  fwdmeta_dispatcher_t handle_ = 0;
};

// The graph of one batch, or why it is refused.
struct Dispatched {
  fwdmeta_status_t status = FWDMETA_OK;
  std::string message;
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
};

struct GraphsReport {
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  std::vector<int64_t> capture_sizes;
  std::vector<fwdmeta_graph_key_t> keys;  // in capture order
  std::vector<Dispatched> dispatched;     // one a batch
};

GraphsReport dispatch(const GraphsFile& file);

Json to_json(const GraphsReport& report);
std::string to_table(const GraphsReport& report, const GraphsFile& file);

}  // namespace fwdmeta::command

#endif

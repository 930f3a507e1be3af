#include "graphs.h"

#include <map>
#include <set>
#include <utility>

namespace fwdmeta::command {

namespace {

Json descriptor_json(const fwdmeta_batch_descriptor_t& descriptor) {
  return Json{{"num_tokens", descriptor.num_tokens},
              {"num_reqs", descriptor.num_reqs},
              {"uniform", descriptor.uniform != 0},
              {"has_lora", descriptor.has_lora != 0},
              {"num_active_loras", descriptor.num_active_loras}};
}

Json keys_json(const std::vector<fwdmeta_graph_key_t>& keys, fwdmeta_graph_mode_t mode) {
  Json list = Json::array();
  for (const fwdmeta_graph_key_t& key : keys) {
    if (key.mode == mode) list.push_back(descriptor_json(key.descriptor));
  }
  return list;
}

Json dispatched_json(const Dispatched& dispatched) {
  if (dispatched.status != FWDMETA_OK) {
    return Json{{"code", fwdmeta_status_name(dispatched.status)}, {"message", dispatched.message}};
  }
  Json json{{"mode", fwdmeta_graph_mode_name(dispatched.result.mode)}};
  json.update(descriptor_json(dispatched.result.descriptor));
  json["reason"] =
      dispatched.result.reason == FWDMETA_DISPATCH_OK ? "" : fwdmeta_dispatch_reason_name(dispatched.result.reason);
  return json;
}

const char* explained(fwdmeta_resolve_reason_t reason) {
  switch (reason) {
    case FWDMETA_RESOLVE_NO_FULL_MIXED:
      return "mixed batches cannot be captured whole";
    case FWDMETA_RESOLVE_NO_FULL:
      return "no batch can be captured whole";
    case FWDMETA_RESOLVE_NO_MULTI_TOKEN:
      return "decodes of more than one token cannot be captured whole";
    default:
      return nullptr;
  }
}

// The sizes of each kind of key, one line a ladder.
std::string key_lines(const std::vector<fwdmeta_graph_key_t>& keys) {
  std::map<std::pair<fwdmeta_graph_mode_t, int32_t>, std::set<int64_t>> ladders;  // by mode and tokens a request
  std::set<int64_t> cases;
  for (const fwdmeta_graph_key_t& key : keys) {
    const fwdmeta_batch_descriptor_t& descriptor = key.descriptor;
    const int32_t query_len = descriptor.uniform ? descriptor.num_tokens / descriptor.num_reqs : 0;
    ladders[{key.mode, query_len}].insert(descriptor.num_tokens);
    cases.insert(descriptor.num_active_loras);
  }
  std::string text;
  for (const auto& [kind, sizes] : ladders) {
    std::string name = fwdmeta_graph_mode_name(kind.first);
    if (kind.second > 0) name += " q=" + std::to_string(kind.second);
    text += wrapped(printed("  %-14s  ", name.c_str()), elided({sizes.begin(), sizes.end()}));
  }
  if (cases.size() > 1) text += wrapped(printed("  %-14s  ", "active LoRAs"), elided({cases.begin(), cases.end()}));
  return text;
}

constexpr int kDigits = 10;  // of a number in a column

// What is asked, and behind it, or on a line of its own where that is too wide, what is answered.
std::string dispatched_line(size_t number, const fwdmeta_dispatch_args_t& batch, const Dispatched& dispatched) {
  const auto shown = [](int64_t value) { return shortened(value, kDigits); };
  const std::string asked =
      printed("%5zu %7s %5s %4s %5s", number, shown(batch.num_tokens).c_str(), shown(batch.num_reqs).c_str(),
              shown(batch.query_len).c_str(), shown(batch.num_active_loras).c_str());
  const auto line = [&](const std::string& answered) {
    const bool fits = asked.size() + 2 + answered.size() <= kColumns;
    return asked + (fits ? "  " : "\n      ") + answered + "\n";
  };
  if (dispatched.status != FWDMETA_OK) {
    return line(fwdmeta_status_name(dispatched.status)) + wrapped("      ", dispatched.message);
  }
  const fwdmeta_dispatch_result_t& result = dispatched.result;
  const std::string reqs = result.descriptor.num_reqs < 0 ? "any" : std::to_string(result.descriptor.num_reqs);
  const bool ok = result.reason == FWDMETA_DISPATCH_OK;
  return line(printed("%-9s %7d %5s %5d", fwdmeta_graph_mode_name(result.mode), result.descriptor.num_tokens,
                      reqs.c_str(), result.descriptor.num_active_loras) +
              (ok ? "" : std::string(" ") + fwdmeta_dispatch_reason_name(result.reason)));
}

}  // namespace

Dispatcher::Dispatcher(const GraphsConfig& config) {
  fwdmeta_dispatcher_config_t values = config.values;
  if (config.capture_sizes) {
    values.capture_sizes = config.capture_sizes->data();
    values.num_capture_sizes = static_cast<int64_t>(config.capture_sizes->size());
  }
  if (config.query_lens) {
    values.query_lens = config.query_lens->data();
    values.num_query_lens = static_cast<int64_t>(config.query_lens->size());
  }
  check(fwdmeta_dispatcher_create(&values, &handle_));
  check(fwdmeta_dispatcher_mark_captured(handle_, nullptr));
}

GraphsReport dispatch(const GraphsFile& file) {
  const Dispatcher dispatcher(file.config);
  GraphsReport report;
  check(fwdmeta_dispatcher_get_info(dispatcher.get(), &report.info));
  int64_t count = report.info.num_capture_sizes;
  report.capture_sizes.resize(static_cast<size_t>(count));
  check(fwdmeta_dispatcher_get_sizes(dispatcher.get(), report.capture_sizes.data(), count, &count));
  count = report.info.num_piecewise_keys + report.info.num_full_keys;
  report.keys.resize(static_cast<size_t>(count));
  check(fwdmeta_dispatcher_get_keys(dispatcher.get(), report.keys.data(), count, &count));
  for (const fwdmeta_dispatch_args_t& batch : file.batches) {
    Dispatched& dispatched = report.dispatched.emplace_back();
    dispatched.status = fwdmeta_dispatch(dispatcher.get(), &batch, &dispatched.result);
    if (dispatched.status != FWDMETA_OK) dispatched.message = fwdmeta_last_error();
  }
  return report;
}

Json to_json(const GraphsReport& report) {
  Json json = answer(kGraphsSchema, "ok");
  json["resolved_mode"] = fwdmeta_graph_mode_name(report.info.resolved_mode);
  json["capture_sizes"] = report.capture_sizes;
  json["piecewise_keys"] = keys_json(report.keys, FWDMETA_GRAPH_PIECEWISE);
  json["full_keys"] = keys_json(report.keys, FWDMETA_GRAPH_FULL);
  Json& list = json["dispatched"] = Json::array();
  for (const Dispatched& dispatched : report.dispatched) list.push_back(dispatched_json(dispatched));
  return json;
}

std::string to_table(const GraphsReport& report, const GraphsFile& file) {
  std::string text = printed("mode: %s\n", fwdmeta_graph_mode_name(report.info.resolved_mode));
  if (const char* why = explained(report.info.resolve_reason)) {
    text += wrapped("  ", printed("%s was asked for: %s", fwdmeta_graph_mode_name(file.config.values.mode), why));
  }
  text += printed("\nkeys: %lld piecewise, %lld full\n", static_cast<long long>(report.info.num_piecewise_keys),
                  static_cast<long long>(report.info.num_full_keys));
  text += wrapped(printed("  %-14s  ", "sizes"), elided(report.capture_sizes));
  text += key_lines(report.keys);
  if (report.dispatched.empty()) return text;
  text += printed("\n%5s %7s %5s %4s %5s  %-9s %7s %5s %5s\n", "batch", "tokens", "reqs", "q", "LoRAs", "graph",
                  "tokens", "reqs", "LoRAs");
  for (size_t i = 0; i < report.dispatched.size(); ++i) {
    text += dispatched_line(i, file.batches[i], report.dispatched[i]);
  }
  return text;
}

}  // namespace fwdmeta::command

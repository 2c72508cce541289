#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "request/options.hpp"
#include "spank_container/runtime.h"
#include "task/step_agent.hpp"

/// The handle and the helpers that all functions of the C API share.

struct spc_runtime {
  spc_log_fn log = nullptr;
  void* log_arg = nullptr;
  std::string error, image_digest;
  spc::StepChannel channel;
  spc::StepAgent agent;
  std::vector<std::string> settings;  ///< override config.toml; from plugstack.conf
  spc::MessageStyle style = spc::MessageStyle::own;
  std::optional<std::set<std::string>> granted;  ///< device nodes of GPUs that the step may open
  /// SPC_FLAG_*, as sent by the agent; -1: not received yet
  std::int64_t task_flags = -1;
  pid_t opened_by = 0;  ///< the process that will fork the tasks
};

namespace spc {

/// Returns the code of the C API: the codes count down in the order of ErrorKind.
constexpr int code_of(ErrorKind kind) { return -1 - static_cast<int>(kind); }
static_assert(code_of(ErrorKind::invalid) == SPC_E_INVALID &&
              code_of(ErrorKind::corrupt) == SPC_E_CORRUPT);
static_assert(code_of(ErrorKind::internal) == SPC_E_INTERNAL);

/// Runs the body of a C API function: catches every exception, and stores the text of a failure in
/// the handle.
template <typename Body>
int guard(spc_runtime* rt, const Body& body) noexcept(false) {
  if (rt == nullptr) return SPC_E_INVALID;
  try {
    Result<void> done = body();
    if (done) return SPC_OK;
    rt->error = done.error().message();
    return code_of(done.error().kind());
  } catch (abi::__forced_unwind&) {  // cancellation of the thread; swallowing it aborts
    throw;
  } catch (const std::bad_alloc&) {
    return SPC_E_NO_SPACE;
  } catch (const std::exception& exception) {
    rt->error = exception.what();
    return SPC_E_INTERNAL;
  } catch (...) {
    return SPC_E_INTERNAL;
  }
}

/// Reads a caller's struct of any earlier or later version: members unknown to the caller keep
/// `known`'s defaults.
template <typename Struct>
Result<Struct> adopt(const Struct* given, Struct known) {
  if (given == nullptr || given->size < sizeof(size_t))
    return Error(ErrorKind::invalid, "missing argument");
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  known.size = sizeof known;
  return known;
}

/// Writes as much of `known` as the caller's struct has room for.
template <typename Struct>
Result<void> hand_out(Struct known, Struct* out) {
  if (out == nullptr || out->size < sizeof(size_t))
    return Error(ErrorKind::invalid, "missing argument");
  known.size = out->size;
  std::memcpy(out, &known, std::min(out->size, sizeof known));
  return {};
}

}  // namespace spc

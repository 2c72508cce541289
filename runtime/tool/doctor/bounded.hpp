#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace spc::tool {

/// What `work` returns, in a process of its own; nothing if it has no answer by `end` or dies. A
/// file system that hangs keeps that process, not us.
std::optional<std::string> answer_before(std::chrono::steady_clock::time_point end,
                                         const std::function<std::string()>& work);

}  // namespace spc::tool

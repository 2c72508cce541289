#pragma once

#include <functional>

#include "base/result.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// Executes `inside` in a child that has entered the container like a task; the caller stays where it is and what it is, so
/// that it can enter later, when there is more to enter.
Result<void> visit_container(const ContainerNamespaces& namespaces, const std::function<Result<void>()>& inside);

}  // namespace spc

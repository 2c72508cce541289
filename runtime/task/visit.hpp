#pragma once

#include <functional>

#include "base/result.hpp"
#include "task/namespaces.hpp"

namespace spc {

/// Executes `inside` in a child that has entered the container like a task; the caller does not enter, so
/// that it can do so later, when the container is complete. An Error of `inside` is given back.
Result<void> visit_container(const ContainerNamespaces& namespaces, const std::function<Result<void>()>& inside);

}  // namespace spc

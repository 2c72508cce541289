#include "task/visit.hpp"

#include "base/child.hpp"
#include "task/enter.hpp"

namespace spc {

Result<void> visit_container(const ContainerNamespaces& namespaces, const std::function<Result<void>()>& inside) {
  auto child = SPC_TRY(Child::run([&] { return enter_container(namespaces) && inside() ? 0 : 1; }, "set up the root file system"));
  if (child.wait().success()) return {};
  return Error(ErrorKind::system, "set up the root file system: helper exited unexpectedly");
}

}  // namespace spc

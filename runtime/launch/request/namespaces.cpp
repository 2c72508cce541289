#include "launch/request/namespaces.hpp"

namespace spc {
namespace {

Result<std::uint32_t> parse_one(std::string_view name) {
  if (name.empty())
    return Error(ErrorKind::invalid, "--container-unshare: empty namespace argument")
        .hint("NS[,NS...]");
  for (const NamespaceKind& kind : kNamespaceKinds) {
    if (kind.bit != own_user && name == kind.name) return std::uint32_t{kind.bit};
  }
  std::string shown = in_quotes(name);
  shown.front() = shown.back() = '\'';  // the words of pyxis
  return Error(ErrorKind::invalid, "--container-unshare: unknown namespace " + shown)
      .hint("net, ipc, uts, pid or cgroup");
}

}  // namespace

Result<std::uint32_t> parse_namespaces(std::string_view list) {
  std::uint32_t bits = 0;
  for (;;) {
    const auto comma = list.find(',');
    bits |= SPC_TRY(parse_one(list.substr(0, comma)));
    if (comma == std::string_view::npos) return bits;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace spc

#include "uri.hpp"

#include <algorithm>

namespace spc::enroot {
namespace {

constexpr std::string_view kRegistry = "docker://";

}  // namespace

Result<void> check_uri(const std::string& uri) {
  for (const std::string_view scheme :
       {kRegistry, std::string_view("dockerd://"), std::string_view("podman://")}) {
    if (uri.starts_with(scheme) && uri.size() > scheme.size()) return {};
  }
  return Error(ErrorKind::invalid, "Invalid argument: " + printable(uri));
}

std::string default_file_name(const std::string& uri) {
  const auto separator = uri.find("://");
  std::string image = separator == std::string::npos ? uri : uri.substr(separator + 3);
  if (uri.starts_with(kRegistry)) {
    if (const auto digest = image.rfind("@sha256:"); digest != std::string::npos)
      image.resize(digest);
    if (const auto user = image.rfind('@'); user != std::string::npos) image.erase(0, user + 1);
    const auto slash = image.find('/');
    const std::string first = image.substr(0, slash);
    if (const auto hash = image.find('#'); hash != std::string::npos) {
      image.erase(0, hash + 1);
    } else if (slash != std::string::npos &&
               (first.find_first_of(".:") != std::string::npos || first == "localhost")) {
      image.erase(0, slash + 1);
    }
  }
  std::replace_if(
      image.begin(), image.end(), [](char c) { return c == '/' || c == ':'; }, '+');
  return image + ".sqsh";
}

}  // namespace spc::enroot

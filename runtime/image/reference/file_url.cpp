#include "image/reference/file_url.hpp"

#include <algorithm>

#include "image/reference/named_image.hpp"

namespace spc {
namespace {

constexpr std::string_view kDigestMark = "#sha256=";

bool is_plain(char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }

/// Whether it is a path, or has one behind its scheme: every character may be in its name.
bool is_local(std::string_view image) {
  return image.find_first_of("./~") == 0 || image.starts_with("oci:") ||
         image.starts_with("oci-archive:") || image.starts_with("docker-archive:");
}

}  // namespace

std::string without_secrets(std::string_view image) {
  if (is_local(image)) return std::string(image);
  const auto scheme = image.find("://");
  const std::size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  std::string_view rest = image.substr(begin), digest;
  const auto mark = rest.find('#');  // of other images REGISTRY#NAME
  if (mark != std::string_view::npos && image.starts_with("http")) {
    if (rest.substr(mark).starts_with(kDigestMark)) digest = rest.substr(mark);
    rest = rest.substr(0, mark);
  }
  rest = rest.substr(0, rest.find('?'));
  const auto slash = rest.find_first_of("/#");
  const auto user = rest.substr(0, slash).rfind('@');
  const bool has_user = user != std::string_view::npos && slash != std::string_view::npos;
  if (has_user &&
      (image.starts_with("http") || rest.substr(0, user).find(':') != std::string_view::npos)) {
    rest.remove_prefix(user + 1);
  }
  return std::string(image.substr(0, begin)).append(rest).append(digest);
}

std::string name_without_secrets(std::string_view image) {
  const auto query = image.find('?');
  const std::string shown = without_secrets(image);
  if (query == std::string_view::npos || is_local(image) ||
      shown.find(kDigestMark) != std::string::npos)
    return shown;
  return shown + "?~" + name_key(image.substr(query)).hex().substr(0, 16);
}

Result<FileUrl> FileUrl::parse(std::string_view text) {
  const auto mark = text.find('#');
  FileUrl file{.url = std::string(text.substr(0, mark)), .host = {}, .path = {}, .digest = {}};
  const std::string_view rest =
      std::string_view(file.url).substr(std::min(kScheme.size(), file.url.size()));
  const auto slash = rest.find('/');
  file.host = rest.substr(0, slash);
  const bool has_path = slash != std::string_view::npos && slash + 1 < rest.size();
  if (!text.starts_with(kScheme) || !has_path || file.host.empty() ||
      file.host.find('@') != std::string::npos ||
      !std::all_of(rest.begin(), rest.end(), is_plain)) {
    return Error(ErrorKind::invalid, "image: is not a URL of a file").hint("https://HOST/PATH");
  }
  file.path = rest.substr(slash + 1);
  if (mark == std::string_view::npos) return file;
  if (!text.substr(mark).starts_with(kDigestMark))
    return Error(ErrorKind::invalid, "image: a URL ends in #sha256=HEX, or has no #");
  file.digest = SPC_TRY_DURING(
      "image", Digest::parse("sha256:" + std::string(text.substr(mark + kDigestMark.size()))));
  return file;
}

}  // namespace spc

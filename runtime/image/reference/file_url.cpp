#include "image/reference/file_url.hpp"

#include <algorithm>

namespace spc {
namespace {

constexpr std::string_view kDigestMark = "#sha256=";

bool is_plain(char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }

}  // namespace

Result<FileUrl> FileUrl::parse(std::string_view text) {
  const auto mark = text.find('#');
  FileUrl file{.url = std::string(text.substr(0, mark)), .host = {}, .path = {}, .digest = {}};
  const std::string_view rest = std::string_view(file.url).substr(std::min(kScheme.size(), file.url.size()));
  const auto slash = rest.find('/');
  file.host = rest.substr(0, slash);
  const bool has_path = slash != std::string_view::npos && slash + 1 < rest.size();
  if (!text.starts_with(kScheme) || !has_path || file.host.empty() || file.host.find('@') != std::string::npos ||
      !std::all_of(rest.begin(), rest.end(), is_plain)) {
    return Error(ErrorKind::invalid, "image: is not a URL of a file").hint("https://HOST/PATH");
  }
  file.path = rest.substr(slash + 1);
  if (mark == std::string_view::npos) return file;
  if (!text.substr(mark).starts_with(kDigestMark))
    return Error(ErrorKind::invalid, "image: a URL ends in #sha256=HEX, or has no #");
  file.digest = SPC_TRY_DURING("image", Digest::parse("sha256:" + std::string(text.substr(mark + kDigestMark.size()))));
  return file;
}

}  // namespace spc

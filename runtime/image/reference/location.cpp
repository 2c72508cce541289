#include "image/reference/location.hpp"

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "image/reference/file_url.hpp"

namespace spc {
namespace {

using Kind = ImageLocation::Kind;

constexpr std::size_t kMaxText = 4096;  // PATH_MAX, and nobody's registry takes more
constexpr std::size_t kMaxName = 512;   // of an image in an archive or a local storage

struct Scheme {
  std::string_view prefix;
  Kind kind;
  std::string_view form;  ///< as a hint shows it
};
constexpr std::array<Scheme, 5> kSchemes = {
    {{"oci:", Kind::oci_layout, "oci:DIR[:REF]"},
     {"oci-archive:", Kind::oci_archive, "oci-archive:FILE[:REF]"},
     {"docker-archive:", Kind::docker_archive, "docker-archive:FILE[:REF]"},
     {"dockerd://", Kind::docker_daemon, "dockerd://NAME"},
     {"podman://", Kind::podman, "podman://NAME"}}};
constexpr char kAllForms[] =
    "[docker://]NAME, oci:DIR, oci-archive:FILE, docker-archive:FILE, dockerd://NAME, "
    "podman://NAME, oras://NAME, https://HOST/FILE, or "
    "a path that begins with ./ or /";
constexpr std::string_view kOras = "oras://";

/// What skopeo and others call what we call otherwise or do not know.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kForeign = {
    {{"docker-daemon:", "use dockerd://NAME"},
     {"containers-storage:", "use podman://NAME"},
     {"dir:", "copy it into an OCI layout: skopeo copy dir:PATH oci:PATH"},
     {"sif:", "use the file's path, for example ./FILE"},
     {"ostree:", kAllForms},
     {"tarball:", "use the file's path, for example ./FILE"}}};

constexpr std::array<std::string_view, 10> kFileEndings = {
    ".sqsh",   ".sqfs", ".squashfs", ".sif",    ".tar",
    ".tar.gz", ".tgz",  ".tar.zst",  ".tar.xz", ".tar.bz2"};

/// In messages: never a text that may have a password in it.
Error bad_location(std::string_view text, const std::string& why) {
  return {ErrorKind::invalid, formatted("image{}: {}",
                                        text.find('@') == std::string_view::npos
                                            ? " " + in_quotes(without_secrets(text))
                                            : std::string(),
                                        why)};
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Names of images in archives, storages and daemons, identifiers and digests among them. Never an
/// option of a program that is given the name.
Result<void> check_name(std::string_view text, std::string_view name) {
  const auto ok = [](char c) {
    return is_letter_or_digit(c) || std::string_view("._-/:@+[]").find(c) != std::string_view::npos;
  };
  if (name.size() > kMaxName)
    return bad_location(text, "the image's name has more than 512 characters");
  if (!std::all_of(name.begin(), name.end(), ok)) {
    return bad_location(text, "an image's name consists of letters, digits and . _ - / : @ +");
  }
  if (!is_letter_or_digit(name.front()) && name.front() != '[' && name.front() != '_') {
    return bad_location(text, "an image's name begins with a letter or a digit");
  }
  return {};
}

Result<void> check_path(std::string_view text, std::string_view path) {
  if (std::any_of(path.begin(), path.end(), is_control))
    return bad_location(text, "control characters are not allowed in an image's path");
  if (path[0] == '~' && path.size() > 1 && path[1] != '/') {
    return bad_location(text, "only ~/ (the user's own home directory) is expanded")
        .hint("use the absolute path");
  }
  if (path == "~") return bad_location(text, "is the home directory, not an image");
  return {};
}

/// What cannot be the name of an image at a registry, although it has no form that we know. With an
/// '@' in it only ImageReference knows what may be shown of it.
Result<void> refuse_other_forms(std::string_view text) {
  const std::string_view scheme = text.substr(0, text.find(':'));
  const bool is_word = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '+';
  });
  const std::string_view behind = text.substr(scheme.size());
  if (is_word && (behind.starts_with("://") || scheme == "file")) {
    auto error =
        Error(ErrorKind::invalid, "image: unknown scheme " + in_quotes(std::string(scheme) + ":"));
    if (scheme == "http") {
      return std::move(error).hint(
          "for an image in a registry use docker://REGISTRY/NAME:TAG; for a file, "
          "https://HOST/FILE");
    }
    if (scheme == "file") return std::move(error).hint("use the path alone, for example /DIR/FILE");
    return std::move(error).hint(kAllForms);
  }
  for (const auto& [prefix, advice] : kForeign) {
    if (text.starts_with(prefix)) {
      return Error(ErrorKind::invalid, "image: unknown scheme " + in_quotes(prefix)).hint(advice);
    }
  }
  if (text.find('@') != std::string_view::npos) return {};
  const auto did_you_mean = [&] {
    return formatted("did you mean {}?", in_quotes("./" + std::string(text)));
  };
  const bool has_tag =
      text.find(':', text.rfind('/') + 1) != std::string_view::npos;  // then it is no file's ending
  for (const std::string_view ending : kFileEndings) {
    if (!has_tag && text.ends_with(ending)) {
      return bad_location(text, "a file needs a path")
          .hint(formatted("{} or, for an image of this name, with its tag: NAME{}:latest",
                          did_you_mean(), ending));
    }
  }
  if (text.ends_with('/'))
    return bad_location(text, "a directory needs a path").hint(did_you_mean());
  return {};
}

Result<ImageLocation> parse_scheme(std::string_view text, const Scheme& scheme) {
  ImageLocation location{.kind = scheme.kind};
  const std::string_view rest = text.substr(scheme.prefix.size());
  if (scheme.prefix.ends_with("//")) {
    if (rest.empty()) return bad_location(text, "the image's name is missing").hint(scheme.form);
    SPC_TRY(check_name(text, rest));
    location.reference = rest;
    return location;
  }
  // As skopeo divides it: a path with a colon in it needs the form ./PATH.
  const std::size_t colon = rest.find(':');
  if (colon == 0 || rest.empty())
    return bad_location(text, "the path is missing").hint(scheme.form);
  SPC_TRY(check_path(text, rest.substr(0, colon)));
  location.path = rest.substr(0, colon);
  if (colon == std::string_view::npos) return location;
  if (colon + 1 == rest.size())
    return bad_location(text, "the name after the last ':' is missing").hint(scheme.form);
  SPC_TRY(check_name(text, rest.substr(colon + 1)));
  location.reference = rest.substr(colon + 1);
  return location;
}

/// A file at a server: what rules for images look at is its name there.
Result<ImageLocation> parse_remote_file(std::string_view text, std::string_view default_registry) {
  ImageLocation location{.kind = Kind::remote_file};
  if (text.starts_with(kOras)) {
    location.name = SPC_TRY(ImageReference::parse(text.substr(kOras.size()), default_registry));
    location.reference = std::string(kOras) + location.name.canonical();
    return location;
  }
  const auto file = SPC_TRY(FileUrl::parse(text));
  location.name.registry = SPC_TRY(parse_registry(file.host));
  location.name.repository = file.path;
  location.name.digest = file.digest;
  location.reference = text;
  return location;
}

}  // namespace

Result<ImageLocation> ImageLocation::parse(std::string_view text,
                                           std::string_view default_registry) {
  if (text.empty()) return Error(ErrorKind::invalid, "the image's name is empty");
  if (text.size() > kMaxText) return bad_location(text, "the name is longer than 4096 characters");
  if (text.find('\0') != std::string_view::npos)
    return bad_location(text, "NUL characters are not allowed");

  if (text[0] == '.' || text[0] == '/' || text[0] == '~') {
    SPC_TRY(check_path(text, text));
    ImageLocation location{.kind = Kind::path};
    location.path = text;
    return location;
  }
  for (const Scheme& scheme : kSchemes) {
    if (text.starts_with(scheme.prefix)) return parse_scheme(text, scheme);
  }
  if (text.starts_with(kOras) || text.starts_with(FileUrl::kScheme))
    return parse_remote_file(text, default_registry);
  if (!text.starts_with("docker://")) SPC_TRY(refuse_other_forms(text));
  ImageLocation location;
  location.name = SPC_TRY(ImageReference::parse(text, default_registry));
  return location;
}

std::string ImageLocation::canonical() const {
  if (kind == Kind::registry) return name.canonical();
  if (kind == Kind::path) return path;
  if (kind == Kind::remote_file) return without_secrets(reference);
  const auto* scheme = std::find_if(kSchemes.begin(), kSchemes.end(),
                                    [&](const Scheme& one) { return one.kind == kind; });
  std::string text(scheme->prefix);
  if (path.empty()) return text + reference;
  return text + path + (reference.empty() ? "" : ":" + reference);
}

}  // namespace spc

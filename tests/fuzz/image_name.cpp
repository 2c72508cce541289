// An image name as typed by a user.
// outcome 2 refused: repository with upper case, empty component, leading -
// outcome 8 refused: newline, ESC, NUL, invalid UTF-8

#include "lib/property.hpp"
#include "reference/location.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

void check_reference(const ImageReference& reference) {
  const std::string canonical = reference.canonical();
  must(is_printable(canonical) && canonical.find(' ') == std::string::npos,
       "a canonical name is printable");
  const auto again = ImageReference::parse(canonical);
  must(again.has_value(), "a canonical name is accepted");
  must(again->canonical() == canonical, "a canonical name stays as it is");
  must(again->registry == reference.registry && again->repository == reference.repository &&
           again->tag == reference.tag && again->digest == reference.digest,
       "a canonical name means the same image");
  must(reference.tag.empty() == reference.digest.has_value(), "a tag or a digest decides");
  must(!reference.repository.empty() && reference.repository.find("..") == std::string::npos &&
           reference.repository.front() != '/' && reference.repository.back() != '/',
       "a repository is no path that climbs");
  must(parse_registry(reference.registry).has_value() &&
           *parse_registry(reference.registry) == reference.registry,
       "a registry's name stays as it is");
  if (const auto file = reference.ref_file_name()) {
    must(file->size() <= 255 && file->find('/') == std::string::npos && *file != "." &&
             *file != ".." && !file->empty(),
         "a reference has a file name");
  }
}

void check_location(const ImageLocation& location) {
  const std::string canonical = location.canonical();
  const auto again = ImageLocation::parse(canonical);
  must(again.has_value() && again->canonical() == canonical,
       "a canonical location is accepted and stays as it is");
  must(again->kind == location.kind && again->path == location.path &&
           again->reference == location.reference,
       "a canonical location means the same image");
  const bool has_path = location.kind != ImageLocation::Kind::registry &&
                        location.kind != ImageLocation::Kind::docker_daemon &&
                        location.kind != ImageLocation::Kind::podman &&
                        location.kind != ImageLocation::Kind::remote_file;
  must(has_path == !location.path.empty() && location.path.find('\0') == std::string::npos,
       "what lies in a file has a path");
  must(!location.reference.starts_with('-'), "a name is no option of a program");
  if (location.kind == ImageLocation::Kind::registry) check_reference(location.name);
}

}  // namespace

FUZZ_TARGET(image_name) {
  const std::string_view text = text_of(data, size);
  for (const char* registry : {"docker.io", "registry:5000"}) {
    const auto reference = ImageReference::parse(text, registry);
    if (reference) {
      check_reference(*reference);
    } else {
      must_be_readable(reference.error());
    }
  }
  const auto location = ImageLocation::parse(text);
  if (location) {
    check_location(*location);
  } else {
    must_be_readable(location.error());
  }
  const auto registry = parse_registry(text);
  if (!registry) must_be_readable(registry.error());
  return 0;
}

#include "hooks/cdi/document.hpp"

namespace spc {

Result<CdiDocument> parse_cdi_document(std::string_view text) {
  if (text.size() > kCdiLimits.bytes) return Error(ErrorKind::invalid, "is larger than 1 MiB");
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Error(ErrorKind::corrupt, "is empty");
  CdiDocument document;
  document.from_yaml = text[first] != '{';
  document.tree =
      SPC_TRY(document.from_yaml ? parse_cdi_yaml(text) : Json::parse(text, kCdiLimits));
  return document;
}

}  // namespace spc

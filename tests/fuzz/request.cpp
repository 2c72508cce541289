// A request to import, which contains strings of the user.

#include "reference/request.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(request) {
  const auto request = ImportRequest::parse(text_of(data, size));
  if (!request) {
    must_be_readable(request.error());
    return 0;
  }
  const std::string written = request->serialize();
  const auto again = ImportRequest::parse(written);
  must(again.has_value() && again->serialize() == written,
       "what was read can be written and read again");
  must(again->image == request->image && again->uid == request->uid &&
           again->config == request->config && again->pull == request->pull &&
           again->since == request->since && again->platform.str() == request->platform.str() &&
           again->registry_user == request->registry_user &&
           again->user_store == request->user_store,
       "it is the same request");
  return 0;
}

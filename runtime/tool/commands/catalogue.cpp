#include <algorithm>
#include <cstdio>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "tool/command.hpp"
#include "tool/images/catalogue.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

Result<int> run_catalogue(const Arguments& arguments) {
  auto catalogue = SPC_TRY(read_catalogue());
  if (!arguments.words.empty()) {
    const std::string& name = arguments.words[0];
    std::erase_if(catalogue, [&](const CatalogueEntry& entry) { return entry.name != name; });
    if (catalogue.empty()) {
      return Error(ErrorKind::not_found,
                   formatted("no image {} in the site's catalogue", in_quotes(name)))
          .hint("scontainer catalogue lists it");
    }
  }
  if (arguments.has("json")) {
    Json list = Json::array();
    for (const auto& entry : catalogue)
      list.push_back(
          {{"name", entry.name}, {"image", entry.image}, {"description", entry.description}});
    std::puts(list.str(2).c_str());
  } else if (!arguments.words.empty()) {
    std::puts(printable(catalogue.front().image).c_str());  // alone, for $(...)
  } else {
    std::vector<std::vector<std::string>> table{{"NAME", "IMAGE", "DESCRIPTION"}};
    for (const auto& entry : catalogue)
      table.push_back(
          {printable(entry.name), printable(entry.image), printable(entry.description)});
    print_table(table);
  }
  return 0;
}

}  // namespace spc::tool

# What of the plugin needs no Slurm.
find_package(Threads REQUIRED)
set(plugin ${PROJECT_SOURCE_DIR}/spank)
spc_unit_test(spank_components_test LIBS spank_container SOURCES spank_components_test.cpp ${plugin}/components.cpp ${plugin}/options.cpp)
spc_unit_test(spank_errors_test LIBS spc_base Threads::Threads
              SOURCES spank_errors_test.cpp ${plugin}/error_gathering.cpp ${plugin}/error_report.cpp)
foreach(test spank_components_test spank_errors_test)
  target_include_directories(${test} PRIVATE ${plugin} ${PROJECT_SOURCE_DIR}/runtime/include)
endforeach()

spc_unit_test(frameworks_test SOURCES hook_frameworks_test.cpp LIBS spc_hooks spc_json spc_base)
spc_unit_test(fabric_test SOURCES hook_fabric_test.cpp LIBS spc_hooks spc_json spc_base)

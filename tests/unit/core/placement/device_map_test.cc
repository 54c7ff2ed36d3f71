#include "placement/device_map.h"

#include <coupler/device_map.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <functional>

#include "trees.h"

namespace coupler::placement {
namespace {

std::string first_line_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(error.detail().hint.empty());
    const std::string text = error.what();  // the hint is on its own line
    return text.substr(0, text.find('\n'));
  }
  return "no error";
}

TEST(MapDevice, Names_AreReadAndWritten) {
  EXPECT_EQ(MapDevice("cpu"), MapDevice::cpu());
  EXPECT_EQ(MapDevice("disk"), MapDevice::disk());
  EXPECT_EQ(MapDevice("cuda:3"), MapDevice(3));
  EXPECT_EQ(MapDevice("12").to_string(), "12");
  EXPECT_LT(MapDevice(1000), MapDevice::cpu());
  EXPECT_LT(MapDevice::cpu(), MapDevice::disk());
  EXPECT_LT(MapDevice(2), MapDevice(10));
  for (const char* wrong : {"", "gpu", "-1", "cuda:", "1x", "Disk"})
    EXPECT_NE(first_line_of([&] { MapDevice device(wrong); }).find("is not a device"),
              std::string::npos)
        << wrong;
  EXPECT_EQ(first_line_of([] { MapDevice device(-1); }), "there is no accelerator -1");
}

TEST(MaxMemory, Sizes_AreReadAsPeopleWriteThem) {
  const MaxMemory memory = {{"cpu", "1GB"}, {1, 5}, {0, "10GiB"}, {2, "0GiB"}, {3, "0"}};
  EXPECT_EQ(memory.of(0), uint64_t{10} << 30);
  EXPECT_EQ(memory.of(1), 5u);
  EXPECT_EQ(memory.of(2), 0u);
  EXPECT_EQ(memory.of(3), 0u);
  EXPECT_EQ(memory.of("cpu"), 1'000'000'000u);
  EXPECT_FALSE(memory.of("disk"));
  EXPECT_EQ(memory.devices().begin()->first, MapDevice(0));
}

TEST(MaxMemory, WrongSizes_AreErrors) {
  EXPECT_NE(first_line_of([] {
              MaxMemory{{0, "10Gb"}};
            }).find("'10Gb' is not a size"),
            std::string::npos);
  EXPECT_NE(first_line_of([] { MaxMemory{{0, "0Gb"}}; }).find("is not a size"), std::string::npos);
  EXPECT_EQ(first_line_of([] {
              MaxMemory{{0, -5}};
            }),
            "max_memory: -5 bytes is not a valid amount of memory");
  EXPECT_EQ(first_line_of([] {
              MaxMemory{{0, 1}, {0, 2}};
            }),
            "max_memory: device 0 is given twice");
}

TEST(MaxMemory, OfTheMachine_HasItsAcceleratorsAndTheCpu) {
  const MaxMemory memory = get_max_memory({{0, 100}, {2, 200}});
  EXPECT_EQ(memory.of(0), 100u);
  EXPECT_EQ(memory.of(2), 200u);
  EXPECT_GT(memory.of("cpu"), 1u << 20);
}

TEST(DeviceMap, LongestPathCounts) {
  const DeviceMap map = {{"", 0}, {"a", "cpu"}, {"a.b.weight", 2}};
  EXPECT_EQ(map.device_of("c.weight"), MapDevice(0));
  EXPECT_EQ(map.device_of("a.c"), MapDevice::cpu());
  EXPECT_EQ(map.device_of("ab.c"), MapDevice(0));
  EXPECT_EQ(map.device_of("a.b.weight"), MapDevice(2));
  EXPECT_FALSE(DeviceMap({{"a", 0}}).device_of("b"));
}

TEST(DeviceMap, Json_GoesOutAndIn) {
  const DeviceMap map = {{"transformer.wte", 0}, {"a \"b\"", "cpu"}, {"lm_head", "disk"}};
  EXPECT_EQ(
      map.to_json(),
      "{\n  \"transformer.wte\": 0,\n  \"a \\\"b\\\"\": \"cpu\",\n  \"lm_head\": \"disk\"\n}");
  EXPECT_EQ(DeviceMap::from_json(map.to_json()), map);
  EXPECT_EQ(DeviceMap::from_json(DeviceMap().to_json()), DeviceMap());
  EXPECT_EQ(DeviceMap::from_json(R"({"": 1})").device_of("any"), MapDevice(1));
}

TEST(DeviceMap, WrongJson_NamesTheKey) {
  const auto read = [](std::string_view text) {
    return first_line_of([&] { DeviceMap::from_json(text); });
  };
  EXPECT_EQ(read(R"({"a": 0, "a": 1})"), "device map: 'a' is given twice");
  EXPECT_EQ(read(R"({"a": -1})"), "device map: 'a': -1 is not a device");
  EXPECT_EQ(read(R"({"a": 1.5})"), "device map: 'a': 1.5 is not a device");
  EXPECT_EQ(read(R"({"a": "gpu"})"), "device map: 'a': 'gpu' is not a device");
  EXPECT_EQ(read(R"({"a": {"b": 0}})"), "device map: 'a': an object is not a device");
  EXPECT_EQ(read(R"({"a": [0]})"), "device map: 'a': a list is not a device");
  EXPECT_EQ(read(R"({"a": null})"), "device map: 'a': null is not a device");
  EXPECT_EQ(read(R"({"a": 3000000000})"), "device map: 'a': 3000000000 is not a device");
  EXPECT_EQ(read("7"), "device map: it must be an object, not 7");
  EXPECT_EQ(read("[]"), "device map: it must be an object, not a list");
  EXPECT_EQ(read(R"({"a": 0)"), "device map: not valid JSON at byte 8");
  EXPECT_EQ(read(R"({"a": 0} x)"), "device map: not valid JSON at byte 10");
  EXPECT_EQ(read(std::string_view("{\"a\": 0}\0", 9)), "device map: it contains a NUL byte");
}

TEST(DeviceMap, PathTwice_IsAnError) {
  EXPECT_EQ(first_line_of([] { DeviceMap({{"a", 0}, {"a", 1}}); }), "the device map has 'a' twice");
}

TEST(CheckMap, WhatIsWrong_IsNamed) {
  ModuleTree tree = layers({10, 20, 30});
  add_bytes(tree, add_child(tree, 0, "head"), "weight", 10, TensorKind::kParameter,
            static_cast<int64_t>(tree.tensors[0].storage));
  const auto check = [&](const DeviceMap& map) {
    return first_line_of([&] { check_map(tree, map); });
  };
  EXPECT_EQ(check({{"0", 0}, {"1", "disk"}, {"2", 1}, {"head", 0}}), "no error");
  EXPECT_EQ(check({{"", "cpu"}}), "no error");
  EXPECT_EQ(check({{"0", 0}, {"1.weight", 0}, {"head", 0}}),
            "the device map has no device for '2.weight'");
  EXPECT_EQ(check({}),
            "the device map has no device for '0.weight', '1.weight', '2.weight', 'head.weight'");
  EXPECT_EQ(check({{"", 0}, {"haed", 1}}),
            "the device map: the model has no module or tensor 'haed'; did you mean 'head'?");
  EXPECT_EQ(check({{"", 0}, {"head", 1}}),
            "the device map puts '0.weight' on 0 and 'head.weight' on 1, but they are the same "
            "parameter");
}

TEST(InferDeviceMap, WrongOptions_AreNamed) {
  const ModuleTree tree = layers({10, 200});
  const auto infer = [&](const std::function<void(DeviceMapOptions&)>& change) {
    DeviceMapOptions options;
    options.max_memory = {{0, 300}, {"cpu", 300}};
    change(options);
    return first_line_of([&] { infer_device_map(tree, options); });
  };
  EXPECT_EQ(infer([](auto&) {}), "no error");
  EXPECT_EQ(infer([](auto& o) { o.mode = "balance"; }),
            "unknown device map mode 'balance'; did you mean 'balanced'?");
  EXPECT_EQ(infer([](auto& o) { o.dtype = "flaot16"; }),
            "dtype: unknown dtype 'flaot16'; did you mean 'float16'?");
  EXPECT_EQ(infer([](auto& o) {
              o.special_dtypes = {{"1.wieght", "int8"}};
            }),
            "special_dtypes: the model has no tensor '1.wieght'; did you mean '1.weight'?");
  EXPECT_EQ(infer([](auto& o) {
              o.special_dtypes = {{"1.weight", "long"}};
            }),
            "special_dtypes['1.weight']: unknown dtype 'long'");
  EXPECT_EQ(infer([](auto& o) {
              o.max_memory = {{0, 150}, {"cpu", 199}};
            }),
            "'1' takes 200 B (200 bytes), and no device may hold more than 199 B (199 bytes)");
}

TEST(NoSplitClasses, MatchWithAndWithoutNamespaceAndSuffix) {
  for (const char* name : {"my::GPTJBlockImpl", "GPTJBlockImpl", "GPTJBlock", "my::GPTJBlock"})
    EXPECT_TRUE(names_class({"Other", name}, "my::GPTJBlockImpl")) << name;
  EXPECT_FALSE(names_class({"Block"}, "my::GPTJBlockImpl"));
  EXPECT_TRUE(names_class({"Impl"}, "Impl"));
}

TEST(Table, HasARowForEachRunOfEntriesAndABarForEachDevice) {
  ModuleTree tree("Net");
  add_bytes(tree, add_child(tree, 0, "wte"), "weight", 2048);
  const size_t blocks = add_child(tree, 0, "h", "ModuleList");
  for (int i = 0; i < 12; ++i)
    add_bytes(tree, add_child(tree, blocks, std::to_string(i)), "weight", 1024);
  DeviceMapOptions options;
  options.max_memory = {{0, 16384}, {"cpu", 65536}};
  DeviceMap map = {{"wte", 0}};
  for (int i = 0; i < 11; ++i) map.set(fmt::format("h.{}", i), i < 10 ? MapDevice(0) : "cpu");
  map.set("h.11", "disk");
  EXPECT_EQ(table_of(tree, map, options),
            "part     device        size\n"
            "wte      0          2.0 KiB\n"
            "h.0 … 9  0         10.0 KiB\n"
            "h.10     cpu        1.0 KiB\n"
            "h.11     disk       1.0 KiB\n"
            "\n"
            "0     ██████████████████░░░░░░    12.0 KiB of 16.0 KiB\n"
            "cpu   ░░░░░░░░░░░░░░░░░░░░░░░░     1.0 KiB of 64.0 KiB\n"
            "disk  ██░░░░░░░░░░░░░░░░░░░░░░     1.0 KiB\n");
}

}  // namespace
}  // namespace coupler::placement

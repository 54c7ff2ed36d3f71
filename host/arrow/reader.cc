// The other side of datasets/arrow_abi.h: Parquet files, and Arrow IPC files and streams, in
// memory.

#include <arrow/array/data.h>
#include <arrow/buffer.h>
#include <arrow/c/bridge.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datasets/arrow_abi.h"

namespace {

using Batch = std::shared_ptr<arrow::RecordBatch>;

struct Failure {
  std::string text;
};

void require(const arrow::Status& status) {
  if (!status.ok()) throw Failure{status.ToString()};
}

template <class T>
T require(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

// Chunks of rows, whatever the format.
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;

  virtual std::shared_ptr<arrow::Schema> schema() = 0;
  virtual Batch read(int64_t chunk, const std::vector<int>& columns) = 0;

  std::vector<int64_t> rows;              // of each chunk
  std::shared_ptr<arrow::Buffer> memory;  // the file
};

class ParquetFile : public File {
 public:
  explicit ParquetFile(const std::shared_ptr<arrow::io::RandomAccessFile>& bytes) {
    auto reader = parquet::ParquetFileReader::Open(bytes);
    reader_ =
        require(parquet::arrow::FileReader::Make(arrow::default_memory_pool(), std::move(reader)));
    reader_->set_use_threads(false);  // the host reads several chunks at a time if it wants to
    const auto metadata = reader_->parquet_reader()->metadata();
    for (int group = 0; group < metadata->num_row_groups(); ++group)
      rows.push_back(metadata->RowGroup(group)->num_rows());
  }

  std::shared_ptr<arrow::Schema> schema() override {
    std::shared_ptr<arrow::Schema> result;
    require(reader_->GetSchema(&result));
    return result;
  }

  Batch read(int64_t chunk, const std::vector<int>& columns) override {
    std::vector<int> leaves;
    for (const int column : columns)
      add_leaves(reader_->manifest().schema_fields.at(static_cast<size_t>(column)), leaves);
    const auto table = require(reader_->ReadRowGroup(static_cast<int>(chunk), leaves));
    // Columns come in the file's order.
    const Batch read = require(table->CombineChunksToBatch());
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    arrow::FieldVector fields;
    const auto all = schema();
    for (const int column : columns) {
      const auto& field = all->field(column);
      arrays.push_back(read->GetColumnByName(field->name()));
      if (arrays.back() == nullptr) throw Failure{"column " + field->name() + " is ambiguous"};
      fields.push_back(field);
    }
    return arrow::RecordBatch::Make(arrow::schema(fields), read->num_rows(), std::move(arrays));
  }

 private:
  static void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
    if (field.is_leaf()) leaves.push_back(field.column_index);
    for (const auto& child : field.children) add_leaves(child, leaves);
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
};

class IpcFile : public File {
 public:
  explicit IpcFile(const std::shared_ptr<arrow::io::RandomAccessFile>& bytes)
      : reader_(require(arrow::ipc::RecordBatchFileReader::Open(bytes))) {
    // One column is enough to count the rows.
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    if (reader_->schema()->num_fields() > 0) options.included_fields = {0};
    const auto counter = require(arrow::ipc::RecordBatchFileReader::Open(bytes, options));
    for (int batch = 0; batch < counter->num_record_batches(); ++batch)
      rows.push_back(require(counter->ReadRecordBatch(batch))->num_rows());
  }

  std::shared_ptr<arrow::Schema> schema() override { return reader_->schema(); }
  Batch read(int64_t chunk, const std::vector<int>& columns) override {
    return require(
        require(reader_->ReadRecordBatch(static_cast<int>(chunk)))->SelectColumns(columns));
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
};

// Its batches can only be found one after another; unless they are compressed, they take no memory.
class IpcStream : public File {
 public:
  explicit IpcStream(const std::shared_ptr<arrow::io::RandomAccessFile>& bytes) {
    const auto reader = require(arrow::ipc::RecordBatchStreamReader::Open(bytes));
    schema_ = reader->schema();
    while (true) {
      Batch batch;
      require(reader->ReadNext(&batch));
      if (batch == nullptr) break;
      rows.push_back(batch->num_rows());
      batches_.push_back(std::move(batch));
    }
  }

  std::shared_ptr<arrow::Schema> schema() override { return schema_; }
  Batch read(int64_t chunk, const std::vector<int>& columns) override {
    return require(batches_[static_cast<size_t>(chunk)]->SelectColumns(columns));
  }

 private:
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<Batch> batches_;
};

std::unique_ptr<File> open_format(const std::shared_ptr<arrow::Buffer>& memory, bool is_parquet) {
  const auto reader = std::make_shared<arrow::io::BufferReader>(memory);
  if (is_parquet) return std::make_unique<ParquetFile>(reader);
  constexpr std::string_view kMagic = "ARROW1";
  const bool has_footer = std::string_view(*memory).starts_with(kMagic);
  if (has_footer) return std::make_unique<IpcFile>(reader);
  return std::make_unique<IpcStream>(reader);
}

std::unique_ptr<File> open_file(const uint8_t* bytes, uint64_t size, bool is_parquet) {
  const auto memory = std::make_shared<arrow::Buffer>(bytes, static_cast<int64_t>(size));
  auto file = open_format(memory, is_parquet);
  file->memory = memory;
  return file;
}

// What was decoded or decompressed; the rest is used in place.
uint64_t bytes_outside(const arrow::ArrayData& data, const arrow::Buffer& memory) {
  uint64_t bytes = 0;
  for (const auto& buffer : data.buffers) {
    if (buffer == nullptr) continue;
    const bool inside =
        buffer->data() >= memory.data() && buffer->data() < memory.data() + memory.size();
    bytes += inside ? 0 : static_cast<uint64_t>(buffer->capacity());
  }
  for (const auto& child : data.child_data) bytes += bytes_outside(*child, memory);
  if (data.dictionary != nullptr) bytes += bytes_outside(*data.dictionary, memory);
  return bytes;
}

// Runs something that may throw, which must not reach the host.
template <class Function>
char* guarded(const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const Failure& failure) {
    return ::strdup(failure.text.c_str());
  } catch (const std::exception& error) {
    return ::strdup(error.what());
  } catch (...) {
    return ::strdup("an unknown exception");
  }
}

char* reader_open(const uint8_t* bytes, uint64_t size, int32_t is_parquet, void** file) {
  return guarded([&] { *file = open_file(bytes, size, is_parquet != 0).release(); });
}

void reader_close(void* file) { delete static_cast<File*>(file); }

char* reader_schema(void* file, ArrowSchema* result) {
  return guarded(
      [&] { require(arrow::ExportSchema(*static_cast<File*>(file)->schema(), result)); });
}

int64_t reader_chunks(void* file) {
  return static_cast<int64_t>(static_cast<File*>(file)->rows.size());
}

int64_t reader_chunk_rows(void* file, int64_t chunk) {
  return static_cast<File*>(file)->rows[static_cast<size_t>(chunk)];
}

char* reader_read(void* file, int64_t chunk, const int32_t* columns, int32_t count,
                  ArrowArray* array, uint64_t* own_bytes) {
  return guarded([&] {
    auto& of = *static_cast<File*>(file);
    const Batch batch = of.read(chunk, {columns, columns + count});
    // Offsets that point outside would be read otherwise.
    require(batch->ValidateFull());
    if (batch->num_rows() != of.rows[static_cast<size_t>(chunk)])
      throw Failure{"the number of rows differs from the one in the file's description"};
    *own_bytes = 0;
    for (const auto& column : batch->column_data())
      *own_bytes += bytes_outside(*column, *of.memory);
    require(arrow::ExportRecordBatch(*batch, array));
  });
}

constexpr CouplerArrowReader kReader = {
    COUPLER_ARROW_VERSION, reader_open,       reader_close, reader_schema,
    reader_chunks,         reader_chunk_rows, reader_read};

}  // namespace

extern "C" __attribute__((visibility("default"))) const CouplerArrowReader* coupler_arrow_reader() {
  return &kReader;
}

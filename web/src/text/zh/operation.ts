export default {
  title: "运维操作",
}

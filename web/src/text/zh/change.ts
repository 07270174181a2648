export default {
  title: "变更",
}

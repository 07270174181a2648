export default {
  title: "命令",
}

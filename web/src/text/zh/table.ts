export default {
  title: "资源",
}

export default {
  title: "对象",
}

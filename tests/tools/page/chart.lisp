(in-package #:clgrpc.tests.page)

(defun drawn (layer &key (height 100))
  (page:markup-text (funcall layer height)))

(test lines-are-parted-where-nothing-is
  (let ((x (page:linear-scale 0 10)) (y (page:linear-scale 0 10)))
    (is (string= "<path class=\"line p50\" d=\"M0 100L500 50M800 0L800.01 0\"/>"
                 (drawn (page:line-layer '((0 . 0) (5 . 5) (6 . nil) (8 . 10)) x y "p50"))))
    (is (search "d=\"M0 100L500 50L500 100L0 100Z\""
                (drawn (page:band-layer '((0 . 0) (5 . 5)) x y "p50"))))))

(test bars-and-cells
  (let ((x (page:linear-scale 0 10)) (y (page:linear-scale 0 10)))
    (is (string= (format nil "<g class=\"bars ok\"><rect x=\"0\" width=\"100\" y=\"50\" ~
                             height=\"50\"><title>a &amp; b</title></rect></g>")
                 (drawn (page:bar-layer '((0 1 5 "a & b") (1 2 0 "nothing")) x y "ok"))))
    (is (search "class=\"h9\"" (drawn (page:cell-layer '((0 1 2 3 1 "many")) x y))))
    (is (search "class=\"h0\"" (drawn (page:cell-layer '((0 1 2 3 0 "few")) x y))))))

(test charts-say-what-they-show
  (let ((text (page:markup-text (page:chart "It rises." '() :x (page:linear-scale 0 10)
                                                            :y (page:linear-scale 0 10)))))
    (is (search "role=\"img\" aria-label=\"It rises.\"" text))
    (is (search "x=\"40%\"" text) "ticks across stand at shares of the width")))

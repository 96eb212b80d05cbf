(in-package #:clgrpc.tests.page)

(defun tick-texts (scale) (mapcar #'cdr (page:scale-ticks scale)))

(defun near (a b) (< (abs (- a b)) 1d-9))

(test linear-scales
  (let ((scale (page:linear-scale 0 61)))
    (is (equal '("0" "20" "40" "60") (tick-texts scale)))
    (is (near 1/2 (page:scale-share scale 61/2)))
    (is (= 0 (page:scale-share scale -5)) "what is beyond is at the end")
    (is (= 1 (page:scale-share scale 100))))
  (is (= 0 (page:scale-share (page:linear-scale 3 3) 3)) "an empty range is widened"))

(test logarithmic-scales
  (let ((scale (page:log-scale 80000 12000000 :text #'page:duration-tick)))
    (is (equal '("100 µs" "200 µs" "500 µs" "1 ms" "2 ms" "5 ms" "10 ms") (tick-texts scale))))
  (let ((scale (page:log-scale 1 10000)))
    (is (near 1/2 (page:scale-share scale 100)))
    (is (= 0 (page:scale-share scale 0)))
    (is (>= 8 (length (page:scale-ticks scale)))))
  (is (equal '("1" "10" "100" "1,000" "10 k" "100 k" "1 M" "10 M" "100 M")
             (tick-texts (page:log-scale 1 100000000)))))

(test scales-of-percentiles
  (let ((scale (page:tail-scale 4)))
    (is (equal '("50 %" "90 %" "99 %" "99.9 %" "99.99 %") (tick-texts scale)))
    (is (near 1/4 (page:scale-share scale 9/10)))
    (is (near 3/4 (page:scale-share scale 999/1000)))
    (is (= 1 (page:scale-share scale 1)))))

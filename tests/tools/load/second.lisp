;;;; Rows of seconds, and what becomes of them in a run of hours.

(in-package #:clgrpc.tests.load)

(defun row-of (number)
  "A row in which NUMBER calls succeeded, in NUMBER microseconds each."
  (load:make-second-row :count (1+ number) :errors 1
                        :latency (histogram-of (loop repeat number collect (* 1000 number)))
                        :sent-octets (* 10 number) :received-octets (* 20 number)
                        :connections number :lateness-max-ns (mod (* 7 number) 100)))

(defun row-figures (row)
  (list (load:second-row-count row) (load:second-row-errors row)
        (load:histogram-count (load:second-row-latency row))
        (load:second-row-sent-octets row) (load:second-row-received-octets row)
        (load:second-row-connections row) (load:second-row-lateness-max-ns row)))

(test two-seconds-become-one
  "Calls and octets are added up; connections are those at the end, lateness the worst."
  (let ((rows (load::pair-rows (vector (row-of 3) (row-of 5) (row-of 2)))))
    (is (equal '((10 2 8 80 160 5 35) (3 1 2 20 40 2 14)) (map 'list #'row-figures rows)))
    (is (= 5000 (load:histogram-max (load:second-row-latency (aref rows 0)))))))

(test rows-fit
  (flet ((fitted (count interval least)
           (multiple-value-bind (rows seconds)
               (load::fit-rows (coerce (loop repeat count collect (row-of 1)) 'vector) interval
                               least)
             (list (length rows) seconds (reduce #'+ rows :key #'load:second-row-count)))))
    (is (equal '(3600 1 7200) (fitted 3600 1 1)))
    (is (equal '(1801 2 7202) (fitted 3601 1 1)))
    (is (equal '(3 4 20) (fitted 10 1 4)))
    (is (equal '(0 4 0) (fitted 0 1 4)))))

(test a-run-of-hours
  "Three hours of calls, one a second, are kept in rows of four seconds, without a call lost."
  (let ((tally (load::make-tally))
        (backend (load:make-share-row :name "a"))
        (run (load:make-run)))
    (load::begin-tally tally 0)
    (dotimes (second 10800)
      (load::note-end tally backend 0 (+ 500000000 (* second 1000000000))
                      (+ 600000000 (* second 1000000000)) 0 nil))
    (load::fill-run run (list tally (load::make-tally)))
    (is (= 4 (load:run-interval-seconds run)))
    (is (= 2700 (length (load:run-seconds run))))
    (is (every (lambda (row) (= 4 (load:second-row-count row))) (load:run-seconds run)))
    (is (= 10800 (load:run-count run)))))

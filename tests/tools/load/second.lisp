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

(test counts-of-a-run
  "Calls by status, server and method, by the seconds of all generators; octets before the first
second do not count, and every other call is left out of those that are reported singly if these are
too many."
  (flet ((tally (&rest calls)
           (let ((tally (load::make-tally :most-samples 2 :sent-octets 5 :received-octets 7
                                          :methods (vector (load:make-share-row :name "m0")
                                                           (load:make-share-row :name "m1"))
                                          :under-way 1 :oldest-under-way-ns (length calls))))
             (load::begin-tally tally 0)
             (setf (load::tally-sent-octets tally) 105 (load::tally-received-octets tally) 207)
             (loop for (address number due end code text) in calls
                   do (load::note-end tally (load::find-backend tally address) number
                                      (* due 1000000) (* end 1000000) code text))
             tally))
         (share (row)
           (list (load:share-row-name row) (load:share-row-count row) (load:share-row-errors row)
                 (load:histogram-count (load:share-row-latency row)))))
    (let* ((first (tally '("a" 0 0 10 0) '("b" 1 100 150 0) '("a" 1 900 1100 14 "gone")
                         '("a" 0 1000 3500 14) '("a" 0 3600 3610 0)))
           (run (progn (load:record-value (load::tally-queue first) 5)
                       (load::fill-run (load:make-run)
                                       (list first (tally '("a" 0 5 25 5 "none")))))))
      (is (equal '(6 2 5 200 400) (list (load:run-count run) (load:run-under-way run)
                                        (load:run-oldest-under-way-ns run)
                                        (load:run-octets-sent run)
                                        (load:run-octets-received run))))
      (is (equal '(("OK" 3 ()) ("Unavailable" 2 (("" . 1) ("gone" . 1)))
                   ("NotFound" 1 (("none" . 1))))
                 (loop for row in (load:run-statuses run)
                       collect (list (load:status-row-name row) (load:status-row-count row)
                                     (load:status-row-messages row)))))
      (is (equal '(("a" 5 3 2) ("b" 1 0 1)) (mapcar #'share (load:run-backends run))))
      (is (equal '(("m0" 4 2 2) ("m1" 2 1 1))
                 (sort (mapcar #'share (load:run-methods run)) #'string< :key #'first)))
      (is (equal '((3 1) (1 1) (0 0) (2 1))
                 (map 'list (lambda (row)
                              (list (load:second-row-count row) (load:second-row-errors row)))
                      (load:run-seconds run))))
      (is (equal '((0 10000000 "OK" nil) (5000000 20000000 "NotFound" "none")
                   (1000000000 2500000000 "Unavailable" nil))
                 (loop for sample in (load:run-samples run)
                       collect (list (load:sample-unix-ns sample) (load:sample-latency-ns sample)
                                     (load:sample-status sample) (load:sample-error sample)))))
      (is (equal '(3 6) (list (load:histogram-count (load:run-latency run))
                              (load:histogram-count (load:run-all-latency run)))))
      (is (equal '("queue") (mapcar #'car (load:run-stages run)))))))

(test messages-of-a-status-are-few
  (let ((row (load:make-status-row)))
    (flet ((note (text) (load::note-message row text) (length (load:status-row-messages row))))
      (is (equal (loop for i from 1 to 50 collect i)
                 (loop for i below 50 collect (note (princ-to-string i)))))
      (is (equal '(50 51 51 51) (mapcar #'note '("49" "50" "51" "49"))))
      (is (equal '(3 2) (loop for text in '("49" "(other messages)")
                              collect (cdr (assoc text (load:status-row-messages row)
                                                  :test #'string=))))))))

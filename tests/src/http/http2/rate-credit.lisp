;;;; See src/http/http2/rate-credit.lisp.

(in-package #:clgrpc.tests.http2)

(defun calls-and-resets (count served)
  "CALMED-BY for COUNT pairs of calls: the first gets an answer, a good one if SERVED, and the
second is cancelled."
  (let ((*dialogue* (charged-server :max-reset-burst 20)))
    (shake-hands)
    (loop for i from 1 to count
          for id = (- (* 4 i) 3)
          do (hears (header-frame id :end-stream))
             (respond id :ok :end t)
             (when served (h2:note-call-served (connection)))
             (hears (header-frame (+ 2 id)) `(:rst-stream ,(+ 2 id) :cancel))
             (flush)
             (when (h2:connection-closed-p (connection)) (return i)))))

(test cancelling-clients-are-borne
  "Every second call may be cancelled, however long this goes on, if the others get good answers."
  (is (null (calls-and-resets 2000 t))))

(test calls-that-are-not-served-pay-for-no-resets
  (is (= 21 (calls-and-resets 2000 nil))))

(test earned-resets-are-not-kept-for-ever
  "Of those earned by a hundred calls, as many as the burst remain, and the burst itself."
  (let ((*dialogue* (charged-server :max-reset-burst 20)))
    (shake-hands)
    (dotimes (i 100) (h2:note-call-served (connection)))
    (is (= 41 (calmed-by 100 #'header-frame (lambda (id) `(:rst-stream ,id :cancel)))))))

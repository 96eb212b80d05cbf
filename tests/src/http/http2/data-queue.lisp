;;;; See src/http/http2/data-queue.lisp; conversations about turns are in
;;;; tests/support/dialogue/flow.lisp.

(in-package #:clgrpc.tests.http2)

(defun sent-content (octets)
  "The content of all DATA frames in OCTETS, one after the other."
  (let ((parts '()))
    (loop with at = 0
          while (< at (length octets))
          do (let ((after (+ at 9 (u24be octets at))))
               (when (zerop (aref octets (+ at 3)))
                 (push (subseq octets (+ at 9) after) parts))
               (setf at after)))
    (apply #'concatenate 'octets (reverse parts))))

(test queued-octets-keep-their-order
  "Octets leave in the order in which they came, for any pieces and windows; the account ends at 0."
  (with-random (queued-octets-keep-their-order)
    (let* ((*dialogue* (begin-dialogue :server '()))
           (sent (octets-of)) (received (octets-of)))
      (shake-hands)
      (hears '(:settings (:initial-window-size 0)) '(:window-update 0 10000000)
             '(:headers 1 :get :end-stream))
      (respond 1 :ok)
      (let ((stream (find-stream 1)))
        (loop repeat 200
              do (let ((piece (random-octets (random 3000))))
                   (setf sent (concatenate 'octets sent piece))
                   (h2:send-data stream piece 0 (length piece) nil))
                 (hears `(:window-update 1 ,(1+ (random 2500))))
                 (setf received (concatenate 'octets received (sent-content (flush))))
                 (is (= (length sent) (+ (length received) (h2:stream-queued-octets stream)))))
        (hears '(:window-update 1 1000000))
        (loop repeat 20
              do (setf received (concatenate 'octets received (sent-content (flush)))))
        (is (equalp sent received))
        (is (h2:stream-queue-empty-p stream))
        (is (zerop (h2:counters-queued-octets (h2:connection-counters (connection)))))))))

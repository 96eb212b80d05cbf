;;;; See src/http/http2/writer.lisp.

(in-package #:clgrpc.tests.http2)

(test blocks-of-any-size
  "A header block split at the peer's largest frame is read unchanged."
  (with-random (blocks-of-any-size)
    (loop repeat 50
          do (let* ((*dialogue* (begin-dialogue :client '()))
                    (value (make-string (random 60000) :initial-element #\|))
                    (fields (append (field-set :post) `(("x" ,value)))))
               (shake-hands)
               (hears `(:settings (:max-frame-size ,(+ 16384 (random 3000)))))
               (flush)
               (h2:send-ping (connection) 1)
               (request fields :end t)
               (let ((forms (read-frame-forms (make-peer) (flush))))
                 (is (equal '(:ping 1) (first forms)))
                 (is (equal `(:headers 1 ,fields :end-stream) (subseq (second forms) 0 4)))
                 (let ((sizes (rest (fifth (second forms)))))
                   (is (or (null sizes)
                           (every (lambda (size)
                                    (= size (h2::connection-peer-frame-octets (connection))))
                                  (butlast sizes))))))))))

(test data-in-place
  "BEGIN-DATA returns exactly the octets that END-DATA sends, even if the buffer must grow, and if
they belong to the frame before them."
  (let ((*dialogue* (begin-dialogue :server '())))
    (shake-hands)
    (hears '(:headers 1 :get :end-stream))
    (respond 1 :ok)
    (loop for count in '(0 1 5 16000 16384)
          do (is (h2:reserve-data (find-stream 1) count))
             (multiple-value-bind (octets position) (h2:begin-data (find-stream 1) count)
               (fill octets (mod count 251) :start position :end (+ position count)))
             (h2:end-data (find-stream 1) count nil))
    (flet ((content (count) (make-list count :initial-element (mod count 251))))
      (let ((octets (flush)) (frames '()))
        (loop with at = 0
              while (< at (length octets))
              do (let ((end (+ at 9 (u24be octets at))))
                   (when (zerop (aref octets (+ at 3)))
                     (push (coerce (subseq octets (+ at 9) end) 'list) frames))
                   (setf at end)))
        (is-true (equal (list (append (content 1) (content 5) (content 16000)) (content 16384))
                        (reverse frames)))))))

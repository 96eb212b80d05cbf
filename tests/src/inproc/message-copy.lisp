;;;; Messages as they pass: limits, copies.

(in-package #:clgrpc.tests.inproc)

(test limits-count-to-the-octet
  "A message as long as either end may send or receive passes, and one longer does not: requests and
answers, alone and in streams, which nobody serializes here."
  (let ((limit (clgrpc.protobuf:serialized-size (note 1 :body 100))))
    (loop for (options channel-options)
            in `((() (:max-send-octets ,limit)) (() (:max-receive-octets ,limit))
                 ((:max-receive-octets ,limit) ()) ((:max-send-octets ,limit) ()))
          do (with-inproc (channel :options options :channel-options channel-options)
                 (:ask (handling (note) note)
                  :chat #'echo)
               (flet ((lone (octets) (ask channel (note 1 :body octets)))
                      (streamed (octets) (numbers (chat channel (list (note 1 :body octets))))))
                 (is (= 1 (number-of (lone 100))))
                 (is (equal '(1) (streamed 100)))
                 (dolist (function (list #'lone #'streamed))
                   (let ((error (caught (funcall function 101))))
                     (is (eq :resource-exhausted (status-of-error error)))
                     (is (search (format nil "~D octets ~:[to send~;received~], limit ~D"
                                         (1+ limit)
                                         (or (getf options :max-receive-octets)
                                             (getf channel-options :max-receive-octets))
                                         limit)
                                 (princ-to-string error))
                         "~A" error))))))))

(test shared-messages
  "If this is requested, both ends have the same objects."
  (let ((kept '()))
    (flet ((keep (note call)
             (declare (ignore call))
             (push note kept)
             note))
      (with-inproc (channel :channel-options '(:messages :share)) (:ask #'keep)
        (let ((note (note 1)))
          (is (eq note (ask channel note)))
          (is (eq note (first kept)))))
      (with-inproc (channel) (:ask #'keep)
        (let* ((note (note 1)) (reply (ask channel note)))
          (is (not (eq note (first kept))))
          (is (not (eq reply (first kept)))))))))

(test metadata-within-the-image
  "The other end gets them as if they had been sent: no blanks at the ends, octets of its own."
  (let* ((octets (coerce '(1 2) 'octets))
         (entries (inproc::metadata-entries `(("x" . " a b ") ("y-bin" . ,octets))))
         (seen (inproc::entries-metadata nil entries)))
    (is (equalp `(("x" . "a b") ("y-bin" . ,(coerce '(1 2) 'octets))) seen))
    (setf (aref octets 0) 9
          (cdr (first seen)) "changed")
    (is (equalp `(("x" . "a b") ("y-bin" . ,(coerce '(1 2) 'octets)))
                (inproc::entries-metadata nil entries)))))

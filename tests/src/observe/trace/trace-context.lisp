;;;; traceparent and grpc-trace-bin: the cases of W3C's test suite for Trace Context, and the format
;;;; of OpenCensus.

(in-package #:clgrpc.tests.trace)

(defparameter *trace* "12345678901234567890123456789012")
(defparameter *span* "1234567890123456")

(defun parsed (text)
  "The trace id, the span id and the sampled flag of TEXT, a traceparent; nil if TEXT is malformed."
  (let ((context (grpc:parse-traceparent text)))
    (and context
         (list (grpc:trace-id context) (grpc:span-id context) (grpc:trace-sampled-p context)))))

(test traceparents-that-are-right
  (dolist (text '("00-12345678901234567890123456789012-1234567890123456-01"
                  "cc-12345678901234567890123456789012-1234567890123456-01"
                  "cc-12345678901234567890123456789012-1234567890123456-01-what-the-future-is-like"
                  " 00-12345678901234567890123456789012-1234567890123456-01"
                  "00-12345678901234567890123456789012-1234567890123456-01 "))
    (is (equal (list *trace* *span* t) (parsed text)) "~S" text))
  (is (equal (list *trace* *span* t)
             (parsed (format nil "~C 00-~A-~A-01 ~:*~:*~:*~C" #\Tab *trace* *span*))))
  (is (equal (list *trace* *span* nil)
             (parsed "00-12345678901234567890123456789012-1234567890123456-00")))
  (is (equal (list *trace* *span* nil)
             (parsed "00-12345678901234567890123456789012-1234567890123456-fe")))
  (is (equal "0af7651916cd43dd8448eb211c80319c"
             (first (parsed "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff")))))

(test traceparents-that-are-wrong
  (dolist (text '("" "00"
                  "00-12345678901234567890123456789012-1234567890123456-01."
                  "00-12345678901234567890123456789012-1234567890123456-01-what-the-future-is-like"
                  "cc-12345678901234567890123456789012-1234567890123456-01.what-the-future-is-like"
                  "ff-12345678901234567890123456789012-1234567890123456-01"
                  ".0-12345678901234567890123456789012-1234567890123456-01"
                  "0.-12345678901234567890123456789012-1234567890123456-01"
                  "000-12345678901234567890123456789012-1234567890123456-01"
                  "0000-12345678901234567890123456789012-1234567890123456-01"
                  "0-12345678901234567890123456789012-1234567890123456-01"
                  "00-00000000000000000000000000000000-1234567890123456-01"
                  "00-.2345678901234567890123456789012-1234567890123456-01"
                  "00-1234567890123456789012345678901.-1234567890123456-01"
                  "00-123456789012345678901234567890123-1234567890123456-01"
                  "00-1234567890123456789012345678901-1234567890123456-01"
                  "00-12345678901234567890123456789012-0000000000000000-01"
                  "00-12345678901234567890123456789012-.234567890123456-01"
                  "00-12345678901234567890123456789012-123456789012345.-01"
                  "00-12345678901234567890123456789012-12345678901234567-01"
                  "00-12345678901234567890123456789012-123456789012345-01"
                  "00-12345678901234567890123456789012-1234567890123456-.0"
                  "00-12345678901234567890123456789012-1234567890123456-0."
                  "00-12345678901234567890123456789012-1234567890123456-001"
                  "00-12345678901234567890123456789012-1234567890123456-1"
                  "00-ABCDEF78901234567890123456789012-1234567890123456-01"
                  "00_12345678901234567890123456789012_1234567890123456_01"))
    (is (null (parsed text)) "~S" text))
  (is (null (parsed (format nil "00-~A-~A-0~C" *trace* *span* (code-char 8217))))))

(test what-is-written-is-read-again
  (let ((text "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    (is (string= text (grpc:traceparent (grpc:parse-traceparent text))))
    (is (search "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 sampled"
                (princ-to-string (grpc:parse-traceparent text))))))

(test grpc-trace-bin-both-ways
  (let* ((context (grpc:parse-traceparent
                   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
         (octets (trace::write-trace-bin (trace::context-high context) (trace::context-low context)
                                         (trace::context-id context) t)))
    (is (equalp #(0 0 #x0a #xf7 #x65 #x19 #x16 #xcd #x43 #xdd #x84 #x48 #xeb #x21 #x1c #x80 #x31
                  #x9c 1 #xb7 #xad #x6b #x71 #x69 #x20 #x33 #x31 2 1)
                octets))
    (is (equalp context (trace::read-trace-bin octets)))
    (is (null (trace::read-trace-bin (subseq octets 0 28))))
    (is (null (trace::read-trace-bin (concatenate 'octets octets #(0)))))
    (dolist (at '(0 1 18 27))
      (let ((wrong (copy-seq octets)))
        (setf (aref wrong at) 7)
        (is (null (trace::read-trace-bin wrong)))))
    (is (null (trace::read-trace-bin (fill (copy-seq octets) 0 :start 2 :end 18))))
    (is (null (trace::read-trace-bin (fill (copy-seq octets) 0 :start 19 :end 27))))))

(test ids-as-octets
  (let ((context (grpc:parse-traceparent
                  "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")))
    (is (= #x0af7651916cd43dd8448eb211c80319c
           (reduce (lambda (n octet) (+ (* 256 n) octet))
                   (trace:context-trace-id-octets context))))
    (is (equalp #(#xb7 #xad #x6b #x71 #x69 #x20 #x33 #x31)
                (trace:context-span-id-octets context)))
    (is (= 1 (trace:context-flags context)))))

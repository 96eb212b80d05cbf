;;;; Files that are read whole have a limit.

(in-package #:clgrpc.tests.base)

(test files-that-are-read-whole-have-a-limit
  "A file of exactly the limit is read; one with an octet more, or without an end, is refused."
  (uiop:with-temporary-file (:stream stream :pathname path :element-type 'octet)
    (let ((octets (fill (make-octets 100000) 233)))
      (write-sequence octets stream)
      :close-stream
      (is (equalp octets (file-octets path :most 100000)))
      (with-open-file (input path :element-type 'octet)
        (is (equalp octets (file-octets input))))
      (signals clgrpc.base::file-too-long (file-octets path :most 99999))))
  (signals clgrpc.base::file-too-long (file-octets "/dev/zero" :most 100000))
  (signals file-error (file-octets "/nowhere")))

;;;; See src/http/http2/frame.lisp.

(in-package #:clgrpc.tests.http2)

(test frame-header-round-trip
  "A written frame header is read again; the reserved bit is dropped."
  (with-random (frame-header-round-trip)
    (let ((octets (make-octets 40)))
      (loop repeat 1000
            do (let ((at (random 31)) (length (random (ash 1 24))) (type (random 256))
                     (flags (random 256)) (id (random (ash 1 31))))
                 (is (= (+ at 9) (h2::write-frame-header octets at length type flags id)))
                 (is (equal (list length type flags id)
                            (multiple-value-list (h2::read-frame-header octets at))))
                 (setf (aref octets (+ at 5)) (logior #x80 (aref octets (+ at 5))))
                 (is (= id (h2::frame-header-stream-id octets at)))
                 (is (= id (nth-value 3 (h2::read-frame-header octets at)))))))))

(test frame-header-bounds
  "A header that does not fit is an error, not a write past the end."
  (signals error (h2::write-frame-header (make-octets 8) 0 0 0 0 1))
  (signals error (h2::read-frame-header (make-octets 20) 12)))

(test fixed-frames
  "The octets of fixed frames are those of RFC 9113 section 6."
  (flet ((written (function size &rest arguments)
           (let ((octets (make-octets size)))
             (is (= size (apply function octets 0 arguments)))
             octets)))
    (is (equalp #(0 0 4 3 0 0 0 0 5 0 0 0 8) (written #'h2::write-rst-stream 13 0 5 8)))
    (is (equalp #(0 0 8 6 1 0 0 0 0 1 2 3 4 5 6 7 8)
                (written #'h2::write-ping 17 1 0 #x0102030405060708)))
    (is (equalp #(0 0 8 7 0 0 0 0 0 127 255 255 255 0 0 0 2)
                (written #'h2::write-goaway 17 0 0 #x7FFFFFFF 2)))
    (is (equalp #(0 0 4 8 0 0 0 0 1 0 1 0 0) (written #'h2::write-window-update 13 0 1 65536)))
    (is (equalp #(0 0 5 2 0 0 0 0 3 0 0 0 1 15) (written #'h2::write-priority 14 0 3 1 15)))))

(test frame-names
  "Names for texts, also of unknown types."
  (is (string= "WINDOW-UPDATE" (h2::frame-name 8)))
  (is (string= "frame of type 200" (h2::frame-name 200))))

;;;; The Huffman code: complete, the one of the RFC, and strict about how a string ends.

(in-package #:clgrpc.tests.hpack)

(defun unhuff (octets)
  (hpack::decode-huffman octets 0 (length octets)))

(defun huff (octets)
  (let ((coded (make-octets (hpack::huffman-octets octets))))
    (assert (= (length coded) (hpack::encode-huffman octets coded 0)))
    coded))

(test huffman-code-is-complete
  "The code is a prefix code without gaps: the Kraft sum is exactly 1."
  (is (= 1 (loop for bits across (hpack::code-lengths) sum (expt 2 (- bits))))))

(test huffman-code-is-the-rfc-s
  (let ((codes (hpack::canonical-codes (hpack::code-lengths)))
        (count 0))
    (do-vector-lines (line "appendix-b.txt")
      (destructuring-bind (symbol code bits) (words line)
        (let ((symbol (parse-integer symbol)))
          (when (and (= (parse-integer code :radix 16) (aref codes symbol))
                     (= (parse-integer bits) (aref (hpack::code-lengths) symbol)))
            (incf count)))))
    (is (= 257 count))))

(defun survives-p (octets)
  (equalp octets (unhuff (huff octets))))

(test every-octet-is-coded
  "Each octet at each position within an octet: those before it have 5 bits each."
  (dotimes (octet 256)
    (is (loop for before from 0 to 8
              for octets = (fill (make-octets (1+ before)) 48)
              do (setf (aref octets before) octet)
              always (survives-p octets))
        "~D" octet)))

(test huffman-round-trip
  (with-random (huffman-round-trip)
    (is (loop for length from 0 to 400
              always (survives-p (random-octets length :limit (if (evenp length) 256 128)))))))

(test huffman-of-long-strings
  (is (survives-p (fill (make-octets 100000) 48)))      ; 5 bits each
  (is (survives-p (fill (make-octets 100000) 10))))     ; 30 bits each

(test huffman-padding
  "Padding is at most 7 bits, all ones; EOS is never written out (RFC 7541 section 5.2)."
  (is (equalp (octets-of 97) (unhuff (hex "1f"))))              ; a and three ones
  (is (equalp (octets-of) (unhuff (hex ""))))
  (dolist (text '("18" "1e"                     ; zeros in the padding
                  "ff" "1fff" "1fffff" "1fffffff" ; 8 ones and more, alone or after a letter
                  "ff9fffffff"
                  "00"                          ; 0, then three zeros
                  "fffffffc" "ffffffff"         ; EOS
                  "fffffffcff" "1ffffffffe"
                  "fe" "fffe" "ffff"            ; a code cut short
                  "52bc30ffffffff"))            ; EOS from the middle of one octet to another's
    (signals hpack-error (unhuff (hex text)))))

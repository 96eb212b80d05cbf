;;;; Whole messages: round trips, equality, copies, printing.

(in-package #:clgrpc.tests.protobuf)

(test wrong-arguments-of-parse-message
  "The text names the valid arguments, and the probable intention."
  (flet ((complaint (&rest arguments)
           (handler-case (progn (apply #'parse-message arguments) "")
             (misuse (error) (princ-to-string error)))))
    (is (search "not CLGRPC.TEST:ALL (the two arguments are in the wrong order)"
                (complaint (octets-of 1 2) 'clgrpc.test:all)))
    (is (string= "PARSE-MESSAGE takes a message type and then octets, not 5."
                 (complaint 'clgrpc.test:all 5)))
    (is (string= "A message type is named by a symbol or its full name, not 5."
                 (complaint 5 (octets-of 1 2))))
    (is (search "There is no message type \"clgrpc.test.Al\" (is it \"clgrpc.test.All\"?)."
                (complaint "clgrpc.test.Al" (octets-of))))
    (is (search "(is it CLGRPC.TEST:INNER?)."
                (complaint (intern "INNERR" '#:clgrpc.test) (octets-of))))))

(defun random-integer (low high)
  (case (random 3)
    (0 (aref (vector low high 0 (min high 127) (min high 128) (min high 300) (max low -1))
             (random 7)))
    (1 (max low (min high (- (random 40000) 20000))))
    (t (+ low (random (1+ (- high low)))))))

(defun random-text ()
  (let ((alphabet (if (zerop (random 3)) "aé€𝄞z" "abcdefgh")))
    (coerce (loop repeat (aref #(0 1 3 4 7 8 9 15 16 17 130) (random 11))
                  collect (char alphabet (random (length alphabet))))
            'string)))

(defun random-enum (slot)
  "A keyword of SLOT's enum, or a number; also one without a name if the enum allows it."
  (let* ((descriptor (enum-type-descriptor (find-enum-type (protobuf::slot-type-name slot))))
         (value (let ((values (enum-descriptor-values descriptor)))
                  (enum-value-descriptor-number (nth (random (length values)) values)))))
    (case (random 4)
      (0 (if (protobuf::slot-closed-p slot) value (- (random 2000) 1000)))
      (1 value)
      (t (enum-keyword (enum-type-name (find-enum-type (protobuf::slot-type-name slot))) value)))))

(defun random-value (slot depth)
  "A value for one element of the field of SLOT."
  (let ((range (rest (assoc (protobuf::slot-kind slot) protobuf::*integer-ranges*))))
    (if range
        (random-integer (first range) (second range))
        (ecase (protobuf::slot-kind slot)
          (:bool (zerop (random 2)))
          (:string (random-text))
          (:bytes (coerce (loop repeat (random 20) collect (random 256)) 'octets))
          (:enum (random-enum slot))
          (:float (aref (vector 0f0 -0f0 1.5f0 (random 1f30)
                                sb-ext:single-float-positive-infinity) (random 5)))
          (:double (aref (vector 0d0 -0d0 -1.5d0 (random 1d300)
                                 sb-ext:double-float-negative-infinity) (random 5)))
          (:message (random-message (protobuf::slot-type-name slot) (1+ depth)))))))

(defun random-message (type depth)
  "A random message of TYPE at most six levels deep."
  (let ((message (make-message type)) (density (1+ (random 10))))
    (loop for slot across (protobuf::layout-slots
                           (protobuf::message-type-layout (find-message-type type)))
          when (and (< (random 10) density)
                    (< (random 6) (- 6 depth)))
            do (setf (field-value message (protobuf::slot-number slot))
                     (ecase (protobuf::slot-label slot)
                       (:singular (random-value slot depth))
                       (:repeated (loop repeat (random 6) collect (random-value slot depth)))
                       (:map
                        (let ((key (protobuf::slot-entry-key slot))
                              (value (protobuf::slot-entry-value slot)))
                          (loop repeat (random 12)
                                collect (cons (random-value key depth)
                                              (random-value value depth))))))))
    message))

(test random-messages-survive-a-round-trip
  (with-seed ()
    (dotimes (i 300)
      (let* ((message (random-message "clgrpc.test.All" 0))
             (octets (serialize message))
             (back (parse-message 'clgrpc.test:all octets)))
        (is (message= message back))
        (is (equalp octets (serialize back)))
        (is (message= message (copy-message message)))
        (is (stringp (princ-to-string message)))))))

(test concatenation-is-merging
  "Reading two concatenated messages gives the same message in the plain and the deferred way."
  (with-seed ()
    (dotimes (i 200)
      (let* ((a (serialize (random-message "clgrpc.test.All" 0)))
             (b (serialize (random-message "clgrpc.test.All" 0)))
             (both (concatenate 'octets a b))
             (type (find-message-type "clgrpc.test.All"))
             (deferred (funcall (protobuf::message-type-reader type) both 0 (length both)
                                (protobuf::make-reading 100 1000000000 t nil))))
        (is (message= deferred (parse-message type both)))))))

(test equality-looks-at-everything
  (let ((message (all :f3 1 :o3 0 :r3 '(1 2) :m1 '(("a" . 1) ("b" . 2))
                      :f17 (clgrpc.test:make-inner))))
    (is (message= message (all :f3 1 :o3 0 :r3 '(1 2) :m1 '(("b" . 2) ("a" . 1))
                               :f17 (clgrpc.test:make-inner))))
    (dolist (change (list (lambda (m) (setf (clgrpc.test:all-f3 m) 2))
                          #'clgrpc.test:clear-all-o3
                          (lambda (m) (setf (clgrpc.test:all-r3 m) '(1 3)))
                          (lambda (m) (setf (clgrpc.test:all-r3 m) '(1 2 3)))
                          (lambda (m) (setf (map-value (clgrpc.test:all-m1 m) "c") 5))
                          (lambda (m) (setf (map-value (clgrpc.test:all-m1 m) "a") 5))
                          (lambda (m) (setf (clgrpc.test:all-f17 m) nil))
                          (lambda (m) (setf (clgrpc.test:all-f1 m) -0d0))))
      (let ((other (copy-message message)))
        (funcall change other)
        (is-false (message= message other))
        (is-false (message= other message)))))
  (is-false (message= (all) (clgrpc.test:make-inner)))
  (is (message= (all :f1 (protobuf::double-nan)) (all :f1 (protobuf::double-nan)))))

(test a-text-is-not-read-as-octets
  (is (search "reads octets, not the text \"name: 5\"; PARSE-JSON-MESSAGE"
              (handler-case (parse-message 'clgrpc.test:all "name: 5")
                (misuse (error) (princ-to-string error))))))

(test messages-print-in-one-line
  (is (equal "#<CLGRPC.TEST:INNER :a 1 :s \"x\" :next #<CLGRPC.TEST:INNER> :xs (1 2)>"
             (let ((*package* (find-package :cl)))
               (princ-to-string (clgrpc.test:make-inner :a 1 :s "x" :next (clgrpc.test:make-inner)
                                                        :xs '(1 2))))))
  (is (not (find #\Newline (princ-to-string (all :f14 (make-string 500 :initial-element #\a)
                                                 :r3 (make-list 500 :initial-element 1)))))))

(test printing-is-bounded
  (let ((message (all :r17 (loop repeat 4 collect (clgrpc.test:make-inner :a 1)))))
    (dotimes (i 100)
      (let ((inner (clgrpc.test:make-inner :s (make-string 50 :initial-element #\b))))
        (setf (clgrpc.test:inner-next inner) (clgrpc.test:all-f17 message)
              (clgrpc.test:all-f17 message) inner)))
    (is (< 400 (length (princ-to-string message)) 420))
    (is (search " …" (princ-to-string message)))))

(test brothers-share-the-room
  "Four messages in each of four, and so on: the printed text is limited for all of them together."
  (define "fan.proto" "syntax = \"proto3\"; package clgrpc.test.fan;
                       message Fan { repeated Fan fans = 1; string name = 2; }")
  (labels ((fan (levels)
             (let ((message (make-message "clgrpc.test.fan.Fan")))
               (setf (field-value message "name") "nobody")
               (when (plusp levels)
                 (setf (field-value message "fans") (loop repeat 4 collect (fan (1- levels)))))
               message)))
    (is (< 400 (length (princ-to-string (fan 5))) 420))
    (is (< (length (princ-to-string (list (fan 2) (fan 2)))) 850))))

(test printed-messages-cannot-forge-lines
  (let* ((evil (format nil "a~%#<FORGED>~C[31m~C~C" (code-char 27) (code-char #x9B)
                       (code-char #x202E)))
         (text (princ-to-string (all :f14 evil :r14 (list evil) :f15 (string-octets evil)))))
    (is (notany #'unsafe-char-p text))
    (is (search "\"a\\n#<FORGED>\\x1b[31m\\x9b\\u{202e}\"" text))))

(test octets-print-readably
  (flet ((printed (octets) (let ((*package* (find-package '#:cl)))
                             (princ-to-string (all :f15 octets)))))
    (is (string= "#<CLGRPC.TEST:ALL :f15 <\"/kvs/é\">>" (printed (string-octets "/kvs/é"))))
    (is (string= "#<CLGRPC.TEST:ALL :f15 <3 octets 00ff61>>" (printed (octets-of 0 255 97))))
    (is (string= "#<CLGRPC.TEST:ALL :f15 <1 octet 0a>>" (printed (octets-of 10))))
    (is (search "<100 octets 00000000000000000000000000000000…>"
                (printed (make-array 100 :element-type 'octet :initial-element 0))))
    (let ((text (printed (string-octets (make-string 100000 :initial-element #\é)))))
      (is (search "éééé\"…>" text))
      (is (< (length text) 120)))))

(test messages-are-written-into-given-octets
  (let* ((message (all :f3 1 :f14 "abc")) (octets (make-octets 10)))
    (multiple-value-bind (value end) (serialize message :into octets :start 2)
      (is (eq octets value))
      (is (= 9 end))
      (is (equal "00001801720361626300" (hex octets))))
    (is (= 7 (nth-value 1 (serialize message))))
    (is (message= message (parse-message 'clgrpc.test:all octets :start 2 :end 9)))
    (signals misuse (serialize message :into octets :start 4))))

(test maps-are-sorted-in-deterministic-mode
  (let ((entries '(("b" . 1) ("" . 2) ("é" . 3) ("a" . 4) ("aa" . 5))))
    (flet ((octets (entries) (serialize (all :m1 entries :m3 '((t . "y") (nil . "n"))
                                                          :m5 '((3 . :red) (-4 . :green)))
                                        :deterministic t)))
      (is (equalp (octets entries) (octets (reverse entries))))
      (is (equalp '(("" . 2) ("a" . 4) ("aa" . 5) ("b" . 1) ("é" . 3))
                  (map-alist (clgrpc.test:all-m1
                              (parse-message 'clgrpc.test:all (octets entries))))))))
  (is (equalp '(("b" . 1) ("a" . 2))
              (map-alist (clgrpc.test:all-m1 (round-trip (all :m1 '(("b" . 1) ("a" . 2)))))))))

(test merging-is-reading-on
  (with-seed ()
    (dotimes (i 200)
      (let* ((a (random-message "clgrpc.test.All" 0))
             (b (random-message "clgrpc.test.All" 0))
             (sum (parse-message 'clgrpc.test:all
                                 (concatenate 'octets (serialize a) (serialize b))))
             (merged (copy-message a)))
        (is (eq merged (merge-message merged b)))
        (is (message= sum merged))
        (is (message= sum (parse-message 'clgrpc.test:all (serialize b) :into a)))
        (is (message= sum a))))))

(test merging-shares-nothing-and-keeps-unknown-fields
  (let ((target (parse-message 'clgrpc.test:inner (unhex "f83f01")))
        (source (parse-message 'clgrpc.test:inner (unhex "1a020803 22020102 f83f02"))))
    (merge-message target source)
    (is (equal "f83f01f83f02" (hex (unknown-fields target))))
    (setf (clgrpc.test:inner-a (clgrpc.test:inner-next target)) 4
          (aref (clgrpc.test:inner-xs target) 0) 9)
    (is (= 3 (clgrpc.test:inner-a (clgrpc.test:inner-next source))))
    (is (equalp #(1 2) (clgrpc.test:inner-xs source)))
    (merge-message target target)
    (is (equalp #(9 2 9 2) (clgrpc.test:inner-xs target)))
    (signals type-error (merge-message target (all)))))

(test merging-shares-no-octets
  (let ((source (all :f15 (octets-of 1 2) :o15 (octets-of 3))) (target (all)))
    (merge-message target source)
    (is (message= source target))
    (is (not (eq (clgrpc.test:all-f15 source) (clgrpc.test:all-f15 target))))
    (is (not (eq (clgrpc.test:all-o15 source) (clgrpc.test:all-o15 target))))))

(test cleared-messages-are-empty
  (let ((message (random-message "clgrpc.test.All" 0)))
    (is (eq message (clear-message message)))
    (is (message= message (all)))
    (is (= 0 (serialized-size message)))
    (is (message= (clgrpc.test.extension:make-base) (clear-message (everything))))))

(test broken-octets-leave-the-message-they-were-to-be-merged-into
  (let ((message (all :f3 1)))
    (signals protobuf-error (parse-message 'clgrpc.test:all (unhex "18027203") :into message))
    (is (message= message (all :f3 1)))))

(test delimited-messages
  (let* ((messages (list (all :f3 1) (all) (all :f14 (make-string 253 :initial-element #\x))))
         (octets (make-octets 300))
         (end 0))
    (dolist (message messages) (setf end (write-delimited message octets :start end)))
    (is (= (+ 3 1 258) end))
    (let ((at 0) (back '()))
      (loop
        (multiple-value-bind (message next)
            (read-delimited 'clgrpc.test:all octets :start at :end end)
          (setf at next)
          (unless message (return))
          (push message back)))
      (is (every #'message= messages (reverse back))))
    (is (equalp (list nil end)
                (multiple-value-list (read-delimited 'clgrpc.test:all octets :start end :end end))))
    (signals protobuf-error (read-delimited 'clgrpc.test:all octets :start 4 :end 100))
    (signals protobuf-error
      (read-delimited 'clgrpc.test:all octets :start 4 :max-octets 200))
    (signals misuse (write-delimited (first messages) octets :start 298))
    (uiop:with-temporary-file (:stream stream :pathname path :direction :io
                               :element-type '(unsigned-byte 8))
      (is (= end (loop for message in messages sum (write-delimited message stream))))
      (finish-output stream)
      (with-open-file (in path :element-type '(unsigned-byte 8))
        (is (every #'message= messages
                   (loop for message = (read-delimited 'clgrpc.test:all in)
                         while message collect message)))
        (file-position in 4)
        (signals protobuf-error (read-delimited 'clgrpc.test:all in :max-octets 200))
        (file-position in (1- end))
        (signals protobuf-error (read-delimited 'clgrpc.test:all in))))))

(test delimited-octets-in-streams
  "A message longer than the initial buffer; a length that is cut off, or without end."
  (let* ((message (all :f14 (make-string 200000 :initial-element #\x)))
         (octets (make-octets (+ 3 (serialized-size message)))))
    (is (= (length octets) (write-delimited message octets)))
    (flet ((read-from (octets)
             (uiop:with-temporary-file (:stream out :pathname path :element-type '(unsigned-byte 8))
               (write-sequence octets out)
               (finish-output out)
               (with-open-file (in path :element-type '(unsigned-byte 8))
                 (read-delimited 'clgrpc.test:all in)))))
      (is (message= message (read-from octets)))
      (is (null (read-from (octets-of))))
      (dolist (bad (list (subseq octets 0 100000) (subseq octets 0 2) (octets-of #x80)
                         (make-array 11 :element-type 'octet :initial-element #x80)))
        (signals protobuf-error (read-from bad))))
    (signals misuse (read-delimited 'clgrpc.test:all octets :start 5 :end 4))
    (signals misuse (read-delimited 'clgrpc.test:all octets :end (1+ (length octets))))))

(test octets-before-the-start-are-zero
  (let ((octets (serialize (all :f3 1) :start 3)))
    (is (= 5 (length octets)))
    (is (every #'zerop (subseq octets 0 3)))))

(test the-memory-of-messages-is-limited
  "Two octets make a message of a kilobyte: the memory for 4 MB of them is limited."
  (let ((octets (make-octets 1000000)))
    (loop for i from 0 below 999999 by 3
          do (replace octets (unhex "fa0200") :start1 i))
    (is (= 333333 (length (clgrpc.test:all-r17
                           (parse-message 'clgrpc.test:all octets :end 999999)))))
    (let ((before (sb-ext:get-bytes-consed)))
      (signals protobuf-error
        (parse-message 'clgrpc.test:all octets :end 999999 :max-decoded-octets 1000000))
      (is (< (- (sb-ext:get-bytes-consed) before) 24000000)))
    (flet ((read-within (limit count)
             (block reading
               (protobuf:parse-received (find-message-type "clgrpc.test.All") octets 0 (* 3 count)
                                        100 limit nil
                                        :beyond (lambda () (return-from reading :beyond))))))
      (is (eq :beyond (read-within 1000000 333333)))
      (is (= 10 (length (clgrpc.test:all-r17 (read-within 1000000 10))))))
    (signals protobuf-error
      (parse-message 'clgrpc.test:all (unhex "8a0100") :max-message-depth 0))
    (finishes (parse-message 'clgrpc.test:all (unhex "8a0100") :max-message-depth 1))))

(defun mutate (octets)
  "A copy of OCTETS with one to four random changes."
  (let ((copy (coerce octets 'list)))
    (dotimes (i (1+ (random 4)) (coerce copy 'octets))
      (let ((at (random (1+ (length copy)))))
        (case (random 4)
          (0 (setf copy (append (subseq copy 0 at) (list (random 256)) (nthcdr at copy))))
          (1 (when (< at (length copy)) (setf (nth at copy) (random 256))))
          (2 (setf copy (subseq copy 0 at)))
          (t (setf copy (append (subseq copy 0 at)
                                (nthcdr (min (length copy) (+ at (random 5))) copy)))))))))

(test mutated-octets-give-documented-conditions-only
  (with-seed ()
    (dotimes (i 40)
      (let ((octets (serialize (random-message "clgrpc.test.All" 3))))
        (dotimes (j 100)
          (handler-case (let ((message (parse-message 'clgrpc.test:all (mutate octets))))
                          (round-trip message))
            (protobuf-error () nil)))))
    (dotimes (i 5000)
      (let ((octets (coerce (loop repeat (random 30) collect (random 256)) 'octets)))
        (handler-case (round-trip (parse-message 'clgrpc.test:all octets))
          (protobuf-error () nil))))
    (pass)))

(test every-leaf-is-known
  "The functions at safety 0 of this layer; for a new one, check its callers and add a row here."
  (is (null (set-difference
             (remove (find-package '#:clgrpc.protobuf) (leaves)
                     :key #'symbol-package :test-not #'eq)
             '(protobuf::%octet-at protobuf::%u32-at protobuf::%u64-at protobuf::%set-u32-at
               protobuf::%set-u64-at protobuf::%compact protobuf::%last-octet-bit protobuf::%spread
               protobuf::%put-varint protobuf::%put-short-varint
               protobuf::%count-varints protobuf::%count-ends protobuf::%copy-elements
               protobuf::%count-fields protobuf::%carve-1 protobuf::%carve-2
               protobuf::%count-ends-512 protobuf::%copy-512
               protobuf::%read-strings protobuf::%put-strings
               protobuf::%sizes-512-int32 protobuf::%sizes-512-uint32 protobuf::%sizes-512-int64
               protobuf::%sizes-512-sint32 protobuf::%sizes-512-sint64
               protobuf::%pack-512-int32 protobuf::%pack-512-uint32 protobuf::%pack-512-int64
               protobuf::%pack-512-sint32 protobuf::%pack-512-sint64
               protobuf::%unpack-512-int32 protobuf::%unpack-512-int64
               protobuf::%unpack-512-sint32 protobuf::%unpack-512-sint64
               protobuf::%field-at protobuf::%wide-field-at protobuf::%put-varint-at
               protobuf::%put-field-at protobuf::%put-wide-field-at protobuf::%count-ends-of-word
               protobuf::%read-few-int32 protobuf::%read-few-int64 protobuf::%read-few-uint32
               protobuf::%read-few-uint64 protobuf::%read-few-sint32 protobuf::%read-few-sint64
               protobuf::%size-few-int32 protobuf::%size-few-uint32 protobuf::%size-few-int64
               protobuf::%size-few-sint32 protobuf::%size-few-sint64
               protobuf::%put-few-int32 protobuf::%put-few-uint32 protobuf::%put-few-int64
               protobuf::%put-few-sint32 protobuf::%put-few-sint64
               protobuf::%sizes-int32 protobuf::%sizes-uint32 protobuf::%sizes-int64
               protobuf::%sizes-sint32 protobuf::%sizes-sint64
               protobuf::%pack-bits-int32 protobuf::%pack-bits-uint32 protobuf::%pack-bits-int64
               protobuf::%pack-bits-sint32 protobuf::%pack-bits-sint64
               protobuf::%unpack-bits-int32 protobuf::%unpack-bits-int64
               protobuf::%unpack-bits-sint32 protobuf::%unpack-bits-sint64
               protobuf::%unpack-int32 protobuf::%unpack-int64 protobuf::%unpack-uint32
               protobuf::%unpack-uint64 protobuf::%unpack-sint32 protobuf::%unpack-sint64
               protobuf::%pack-int32 protobuf::%pack-int64 protobuf::%pack-uint32
               protobuf::%pack-uint64 protobuf::%pack-sint32 protobuf::%pack-sint64)))))

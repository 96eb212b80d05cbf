;;;; Frames in the notation of the dialogues, to octets and back, by code that shares nothing with
;;;; the frame code under test but the constants of the RFC written out here once more.
;;;;
;;;;   (:data ID CONTENT option…)        CONTENT a string, or a count of zero octets
;;;;   (:headers ID FIELDS option…)      FIELDS a list of (name value), or the name of a set below
;;;;   (:continuation ID OCTETS option…) (:priority ID DEPENDENCY)     (:rst-stream ID CODE)
;;;;   (:settings (NAME VALUE)…)         (:settings-ack)               (:ping N)  (:ping-ack N)
;;;;   (:goaway LAST-ID CODE)            (:window-update ID N)
;;;;   (:frame TYPE FLAGS ID OCTETS)     whatever else
;;;;
;;;; Options: :END-STREAM; :OPEN, without END_HEADERS; (:PAD N); (:DEPENDS ID); and of what is read,
;;;; (:PIECES N…), the sizes of HEADERS and its CONTINUATIONs. Codes and settings are keywords or
;;;; numbers.

(in-package #:clgrpc.tests.dialogue)

(defparameter *codes*
  '(:no-error :protocol-error :internal-error :flow-control-error :settings-timeout :stream-closed
    :frame-size-error :refused-stream :cancel :compression-error :connect-error :enhance-your-calm
    :inadequate-security :http-1-1-required))

(defparameter *settings*
  '(nil :header-table-size :enable-push :max-concurrent-streams :initial-window-size :max-frame-size
    :max-header-list-size))

(defun number-of (name list)
  (if (integerp name) name (or (position name list) (error "What is ~S?" name))))

(defun name-of (number list)
  (or (and (< number (length list)) (nth number list)) number))

(defparameter *field-sets*
  '(:get ((":method" "GET") (":scheme" "http") (":path" "/") (":authority" "localhost"))
    :post ((":method" "POST") (":scheme" "http") (":path" "/greeter/hello")
           (":authority" "localhost") ("content-type" "application/grpc") ("te" "trailers"))
    :ok ((":status" "200") ("content-type" "application/grpc"))
    :continue ((":status" "100"))
    :done (("grpc-status" "0"))
    :none ()))

(defun field-set (fields)
  "FIELDS as a list of (name value)."
  (if (keywordp fields) (getf *field-sets* fields) fields))

;;; To octets

(defstruct peer
  "The HPACK state of the scripted peer."
  (encoder (hpack:make-encoder))
  (decoder (hpack:make-decoder :table-octets 65536 :list-octets 1000000)))

(defun joined (&rest parts)
  (apply #'concatenate 'octets parts))

(defun big-endian (number count)
  (let ((octets (make-octets count)))
    (dotimes (i count octets)
      (setf (aref octets i) (ldb (byte 8 (* 8 (- count 1 i))) number)))))

(defun raw-frame (type flags id payload)
  (joined (big-endian (length payload) 3) (octets-of type flags) (big-endian id 4) payload))

(defun content-octets (content)
  (etypecase content
    (integer (make-octets content))
    (string (ascii-octets content))
    (octets content)))

(defun encode-fields (encoder fields)
  (let ((buffer (make-buffer :size 64)))
    (hpack:begin-block encoder buffer)
    (loop for (name value) in (field-set fields)
          do (hpack:encode-field encoder buffer (hpack:string-field name value) :index))
    (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun option-value (name options)
  (second (find-if (lambda (option) (and (consp option) (eq name (first option)))) options)))

(defun option-flags (options)
  (logior (if (member :end-stream options) 1 0)
          (if (option-value :pad options) 8 0)
          (if (option-value :depends options) 32 0)))

(defun with-options (options content)
  "The payload of DATA or HEADERS: CONTENT with what OPTIONS add before and after it."
  (let ((pad (option-value :pad options))
        (dependency (option-value :depends options)))
    (joined (if pad (octets-of pad) (octets-of))
            (if dependency (joined (big-endian dependency 4) (octets-of 15)) (octets-of))
            content
            (make-octets (or pad 0)))))

(defun frame-octets (peer form)
  "The octets of the frame FORM, its fields compressed by PEER."
  (destructuring-bind (kind . arguments) form
    (flet ((argument (n) (nth n arguments))
           (code (n) (big-endian (number-of (nth n arguments) *codes*) 4)))
      (ecase kind
        (:data (raw-frame 0 (option-flags (cddr arguments)) (argument 0)
                          (with-options (cddr arguments) (content-octets (argument 1)))))
        (:headers (raw-frame 1 (logior (option-flags (cddr arguments))
                                       (if (member :open arguments) 0 4))
                             (argument 0)
                             (with-options (cddr arguments)
                               (if (typep (argument 1) 'octets)
                                   (argument 1)
                                   (encode-fields (peer-encoder peer) (argument 1))))))
        (:priority (raw-frame 2 0 (argument 0) (joined (big-endian (argument 1) 4) (octets-of 15))))
        (:rst-stream (raw-frame 3 0 (argument 0) (code 1)))
        (:settings (raw-frame 4 0 0 (apply #'joined
                                           (loop for (name value) in arguments
                                                 collect (big-endian (number-of name *settings*) 2)
                                                 collect (big-endian value 4)))))
        (:settings-ack (raw-frame 4 1 0 (octets-of)))
        (:ping (raw-frame 6 0 0 (big-endian (argument 0) 8)))
        (:ping-ack (raw-frame 6 1 0 (big-endian (argument 0) 8)))
        (:goaway (raw-frame 7 0 0 (joined (big-endian (argument 0) 4) (code 1))))
        (:window-update (raw-frame 8 0 (argument 0) (big-endian (argument 1) 4)))
        (:continuation (raw-frame 9 (if (member :open arguments) 0 4) (argument 0) (argument 1)))
        (:frame (raw-frame (argument 0) (argument 1) (argument 2) (argument 3)))))))

(defun frames-octets (peer forms)
  "The octets of the frames FORMS, one after the other."
  (apply #'joined (mapcar (lambda (form) (frame-octets peer form)) forms)))

;;; From octets

(defun decoded-fields (peer block)
  (let ((list (hpack:make-field-list))
        (pairs '()))
    (hpack:decode-block (peer-decoder peer) block 0 (length block) list)
    (hpack:do-fields (field list (nreverse pairs))
      (push (list (hpack:field-name-string field) (hpack:field-value-string field)) pairs))))

(defvar *most-shown* 40 "Of more octets only their number is shown.")

(defun content-form (octets)
  "OCTETS as a string, or their number if they are many."
  (if (< *most-shown* (length octets)) (length octets) (map 'string #'code-char octets)))

(defun read-block (peer first-form-octets next-frame)
  "Read CONTINUATIONs by NEXT-FRAME until one has END_HEADERS; return the fields and the sizes."
  (destructuring-bind (flags payload) first-form-octets
    (let ((block payload)
          (sizes (list (length payload))))
      (loop until (logtest 4 flags)
            do (destructuring-bind (type more-flags id more) (funcall next-frame)
                 (declare (ignore id))
                 (assert (= type 9) () "No CONTINUATION but a frame of type ~D." type)
                 (setf flags more-flags
                       block (joined block more))
                 (push (length more) sizes)))
      (values (decoded-fields peer block) (nreverse sizes)))))

(defun split-frame (octets at)
  "The frame at AT of OCTETS as (type flags id payload) and the position after it."
  (let ((after (+ at 9 (u24be octets at))))
    (assert (<= after (length octets)) () "Half a frame was sent.")
    (values (list (aref octets (+ at 3)) (aref octets (+ at 4)) (u32be octets (+ at 5))
                  (subseq-octets octets (+ at 9) after))
            after)))

(defparameter *flags* #(1 5 0 0 1 0 1 0 0 4)
  "By the types of frames, the flags that we send.")

(defun frame-form (peer frame next-frame)
  "The notation of FRAME, a list as SPLIT-FRAME gives; NEXT-FRAME delivers its CONTINUATIONs. Flags
without a meaning must be left unset (RFC 9113 section 4.1)."
  (destructuring-bind (type flags id payload) frame
    (assert (or (<= (length *flags*) type) (zerop (logandc2 flags (aref *flags* type)))) ()
            "A frame of type ~D has the flags ~D." type flags)
    (let ((end (when (and (<= type 1) (logtest 1 flags)) '(:end-stream))))
      (flet ((word (at) (u32be payload at))
             (code (at) (name-of (u32be payload at) *codes*)))
        (case type
          (0 (list* :data id (content-form payload) end))
          (1 (multiple-value-bind (fields sizes)
                 (read-block peer (list flags payload) next-frame)
               `(:headers ,id ,fields ,@end ,@(when (rest sizes) `((:pieces ,@sizes))))))
          (3 (list :rst-stream id (code 0)))
          (4 (if (logtest 1 flags)
                 (list :settings-ack)
                 (list* :settings
                        (loop for at from 0 below (length payload) by 6
                              collect (list (name-of (u16be payload at) *settings*)
                                            (word (+ at 2)))))))
          (6 (list (if (logtest 1 flags) :ping-ack :ping) (u64be payload 0)))
          (7 (list :goaway (word 0) (code 4)))
          (8 (list :window-update id (word 0)))
          (t (list :frame type flags id payload)))))))

(defun read-frame-forms (peer octets)
  "The notation of all frames in OCTETS, their fields decompressed by PEER."
  (let ((at 0))
    (flet ((next-frame ()
             (multiple-value-bind (frame after) (split-frame octets at)
               (setf at after)
               frame)))
      (loop while (< at (length octets))
            collect (frame-form peer (next-frame) #'next-frame)))))

(defun canonical (form)
  "FORM as READ-FRAME-FORMS would give it: field sets written out."
  (if (eq :headers (first form))
      (list* :headers (second form) (field-set (third form)) (cdddr form))
      form))

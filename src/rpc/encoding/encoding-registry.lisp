;;;; The encodings for compressed messages (gRPC's document "Compression"): gzip and deflate through
;;;; libz, zstd through libzstd if users register it, and encodings that users define. An encoding
;;;; that is registered again stays the same object; only its functions change. So objects that
;;;; refer to an encoding, such as header fields, stay valid.

(in-package #:clgrpc.encoding)

(defstruct (encoding (:copier nil))
  "A way to compress messages."
  (name :gzip :type keyword :read-only t) ; the name in code
  (text "" :type simple-string :read-only t) ; the name in headers
  ;; a function without arguments that returns true if the next functions may be called, else nil
  ;; and the reason
  (opener (constantly t) :type function)
  ;; (level octets start end room): the values of OS:DEFLATE-OCTETS
  (compressor #'identity :type function)
  ;; (octets start end limit): the values of OS:INFLATE-OCTETS
  (expander #'identity :type function)
  ;; a function like EXPANDER that also returns the beginning of a too long or damaged result
  (beginner #'identity :type function))

(declaim (sb-ext:freeze-type encoding))

(document-functions
  encoding-name "The keyword by which users name ENCODING."
  encoding-text "The name of ENCODING in headers.")

(define-printer (encoding encoding)
  "~(~A~)" (encoding-name encoding))

(defun zlib-encoding (format)
  "An encoding for FORMAT, an OS:ZLIB-FORMAT."
  (make-encoding
   :name format :text (string-downcase format) :opener (lambda () (os:open-zlib))
   :compressor (lambda (level octets start end room)
                 (os:deflate-octets format level octets start end room))
   :expander (lambda (octets start end limit) (os:inflate-octets format octets start end limit))
   :beginner (lambda (octets start end limit)
               (os:inflate-beginning format octets start end limit))))

(declaim (type list **encodings**))
(sb-ext:define-load-time-global **encodings**
    (list (zlib-encoding :gzip) (zlib-encoding :deflate)))

(declaim (inline encodings))
(defun encodings ()
  "All encodings, an immutable list: registration makes a new list. From any thread."
  **encodings**)

(defun encoding-open-p (encoding)
  "True if messages can be compressed by ENCODING; else two values, nil and the reason as text. From
any thread."
  (funcall (encoding-opener encoding)))

(defun encoding-of-name (name)
  "The encoding that users name NAME; nil if no encoding has this name."
  (find name (encodings) :key #'encoding-name))

;;; Octets to octets. All code that decompresses messages calls EXPAND-OCTETS or EXPAND-BEGINNING.

(defun compressed-octets (encoding level octets start end room)
  "Compress the octets START to END by ENCODING. Return the values of OS:DEFLATE-OCTETS."
  (funcall (encoding-compressor encoding) level octets start end room))

(defun expand-octets (encoding octets start end limit)
  "Decompress the octets START to END, a message compressed by ENCODING. Return the values of
OS:INFLATE-OCTETS. In user code."
  (funcall (encoding-expander encoding) octets start end limit))

(defun expand-beginning (name octets start end limit)
  "As EXPAND-OCTETS, by the encoding that users name NAME. With every outcome also return octets of
BORROW-OCTETS, or nil, and the number of these, at most LIMIT, that are the beginning of the
result."
  (funcall (encoding-beginner (encoding-of-name name)) octets start end limit))

;;; Encodings of users

(defun compress-by (function)
  "The COMPRESSOR of an encoding whose user has given FUNCTION, a function of octets and a level."
  (declare (type function function))
  (lambda (level octets start end room)
    (let* ((result (funcall function (subseq-octets octets start end) level))
           (end (+ room (length result)))
           (to (borrow-octets end)))
      (replace to result :start1 room)
      (values to end))))

(defstruct (bounded-output (:conc-name output-) (:copier nil))
  "The octets that a user's function has decompressed so far."
  (octets nil :type octets)             ; a vector of BORROW-OCTETS
  (fill 0 :type index)                  ; the number of octets filled
  (limit 0 :type index))                ; the most octets that the result may have

(defun add-output (output octets start end)
  "Add OCTETS from START to END to OUTPUT. If the sum exceeds the limit, add as many octets as fit
and return false."
  (let* ((fill (output-fill output))
         (count (min (- end start) (- (output-limit output) fill)))
         (room (length (output-octets output))))
    (when (< room (+ fill count))
      (let ((longer (borrow-octets (max (+ fill count)
                                        (min (output-limit output) (* 4 room))))))
        (copy-octets (output-octets output) 0 fill longer 0)
        (give-octets-back (shiftf (output-octets output) longer))))
    (replace (output-octets output) octets :start1 fill :start2 start :end2 (+ start count))
    (setf (output-fill output) (+ fill count))
    (= count (- end start))))

(defun call-bounded (function octets output)
  "Call FUNCTION, a user's function, with OCTETS and a function that writes to OUTPUT. Return the
outcome, a keyword of OS:INFLATION. Once OUTPUT is full, a non-local exit leaves FUNCTION."
  (declare (type function function))
  (block nil
    (handler-case
        (funcall function octets
                 (lambda (octets &optional (start 0) (end (length octets)))
                   (unless (add-output output octets start end) (return :too-long))))
      (storage-condition () (return :no-memory))
      (error () (return :corrupt)))
    :ok))

(defun expand-by (function)
  "The BEGINNER of an encoding for which the user has given FUNCTION, a function of octets and of a
function that writes."
  (lambda (octets start end limit)
    (let ((output (make-bounded-output
                   :limit limit :octets (borrow-octets (min limit (max 512 (* 4 (- end start))))))))
      (values (call-bounded function (subseq-octets octets start end) output)
              (output-octets output)
              (output-fill output)))))

(defun whole-by (beginner)
  "The EXPANDER for an encoding that has BEGINNER."
  (declare (type function beginner))
  (lambda (octets start end limit)
    (multiple-value-bind (outcome result length) (funcall beginner octets start end limit)
      (cond ((eq :ok outcome) (values :ok result length))
            (t (when result (give-octets-back result))
               (values outcome nil 0))))))

;;; Registration

(defconstant +encoding-characters+ 24 "The maximum length of an encoding's name, in characters.")
(defconstant +most-encodings+ 12 "The maximum number of registered encodings. It is small because
headers name all of them.")

(defun encoding-text-for (name)
  "The text in headers for NAME, a keyword. Signal MISUSE if NAME cannot be the name of an
encoding."
  (let ((text (and (keywordp name) (coerce (string-downcase name) 'simple-string))))
    (unless (and text
                 (<= 1 (length text) +encoding-characters+)
                 (every (lambda (character)
                          (or (char<= #\a character #\z) (digit-char-p character)
                              (find character "-_.")))
                        text))
      (misuse "~S cannot be the name of a compression, which is a keyword of at most ~D letters, ~
               digits and \"-_.\"." name +encoding-characters+))
    (when (member name '(:identity :gzip :deflate))
      (misuse "The compression ~S is built in; register another name." name))
    text))

(defun put-encoding (new)
  "Add NEW to the encodings, or give the functions of NEW to the existing encoding of the same name,
and return the encoding. From any thread."
  (loop
    (let* ((old **encodings**)
           (known (find (encoding-name new) old :key #'encoding-name)))
      (cond (known
             (setf (encoding-opener known) (encoding-opener new)
                   (encoding-compressor known) (encoding-compressor new)
                   (encoding-expander known) (encoding-expander new)
                   (encoding-beginner known) (encoding-beginner new))
             (return known))
            ((<= +most-encodings+ (length old))
             (misuse "~D compressions are registered already, which is the maximum."
                     +most-encodings+))
            ((eq old (sb-ext:compare-and-swap (symbol-value '**encodings**) old
                                              (append old (list new))))
             (return new))))))

(define-keyword-function register-compressor (name &key compress decompress)
  "Register the compression NAME, a keyword: from now on :COMPRESSION of channels, servers and stubs
accepts it, headers offer it to peers, and messages that peers have compressed by it are read. In
headers the name is in lower case: \"snappy\" for :snappy. Return NAME.
COMPRESS    a function of octets, those of a message, and the option :compression-level, 1 to 9,
            that returns octets
DECOMPRESS  a function of octets, those of a compressed message, and a function WRITE. It calls
            WRITE with the octets of the message, in pieces: (funcall write octets start end), where
            START and END are optional. Once these octets exceed the call's limit,
            :max-receive-octets, WRITE does not return, and the call ends with :resource-exhausted.
            If DECOMPRESS signals an error the message is corrupt: the call ends with :internal
Both functions may be called by several threads at once, and must not change their octets.
Registering NAME again replaces its functions. Register a compression before you make channels and
servers that use it. Signal MISUSE for :identity, :gzip, :deflate, and an invalid name. From any
thread."
  (let ((text (encoding-text-for name)))
    (unless (and (functionp compress) (functionp decompress))
      (misuse "The compression ~S needs two functions, :compress and :decompress." name))
    (let ((beginner (expand-by decompress)))
      (put-encoding (make-encoding :name name :text text :compressor (compress-by compress)
                                   :beginner beginner :expander (whole-by beginner))))
    name))

(defun register-zstd ()
  "Register the compression :zstd (RFC 8878), by the machine's libzstd, and return :zstd; without
libzstd return nil and the reason, a string. The level of compression is the option
:compression-level. From any thread."
  (multiple-value-bind (open reason) (os:open-zstd)
    (cond (open
           (put-encoding (make-encoding
                          :name :zstd :text "zstd" :opener #'os:open-zstd
                          :compressor #'os:zstd-octets
                          :expander #'os:expand-zstd :beginner #'os:expand-zstd))
           :zstd)
          (t (values nil reason)))))

(defun check-compression (name)
  "Return two values: NAME if it is the name of a usable encoding, :identity or nil; and the
encoding, or nil. Signal MISUSE for any other NAME, and if the encoding's library is missing."
  (let ((encoding (encoding-of-name name)))
    (unless (member name '(nil :identity))
      (unless encoding
        (misuse "~S is not a compression; the registered ones are ~{~S, ~}and :identity." name
                (mapcar #'encoding-name (encodings))))
      (multiple-value-bind (usable reason) (encoding-open-p encoding)
        (unless usable (misuse "The compression ~S is not available here: ~A." name reason))))
    (values name encoding)))

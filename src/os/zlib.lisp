;;;; gzip (RFC 1952) and deflate, by which gRPC means zlib's format (RFC 1950), through libz. Octets
;;;; in, octets out, one message at a time. Decompressed octets are counted and bounded as they are
;;;; produced; a length that the input states is not trusted.
;;;;
;;;; A z_stream and the memory that libz allocates for it (260 KB to compress, 40 KB to decompress)
;;;; are costly to make. So a few z_streams of each kind are kept for the next message, for the
;;;; whole image; only one thread at a time uses a z_stream. A z_stream is in foreign memory, since
;;;; libz keeps its address. The offsets are those of struct z_stream on 64-bit machines.

(in-package #:clgrpc.os)

(macrolet ((define-zlib-constants (&rest rows)
             `(progn ,@(loop for (name c-name value) in rows
                             collect `(defconstant ,name ,value
                                        ,(format nil "zlib.h's ~A." c-name))))))
  (define-zlib-constants
    (+z-ok+ "Z_OK" 0)
    (+z-stream-end+ "Z_STREAM_END" 1)
    (+z-buf-error+ "Z_BUF_ERROR" -5)
    (+z-mem-error+ "Z_MEM_ERROR" -4)
    (+z-no-flush+ "Z_NO_FLUSH" 0)
    (+z-finish+ "Z_FINISH" 4)
    (+z-deflated+ "Z_DEFLATED" 8)
    (+z-stream-octets+ "sizeof (z_stream)" 112)
    (+z-next-in+ "offsetof (z_stream, next_in)" 0)
    (+z-avail-in+ "offsetof (z_stream, avail_in)" 8)
    (+z-next-out+ "offsetof (z_stream, next_out)" 24)
    (+z-avail-out+ "offsetof (z_stream, avail_out)" 32)))

(define-library **libz** ("libz.so.1" "libz.so") (:on-forget 'end-idle-streams)
  (%deflate-init "deflateInit2_" int (stream system-area-pointer) (level int) (method int)
                 (window-bits int) (memory int) (strategy int) (version c-string) (size int))
  (%deflate "deflate" int (stream system-area-pointer) (flush int))
  (%deflate-bound "deflateBound" (unsigned 64) (stream system-area-pointer) (size (unsigned 64)))
  (%deflate-params "deflateParams" int (stream system-area-pointer) (level int) (strategy int))
  (%deflate-reset "deflateReset" int (stream system-area-pointer))
  (%deflate-end "deflateEnd" int (stream system-area-pointer))
  (%inflate-init "inflateInit2_" int (stream system-area-pointer) (window-bits int)
                 (version c-string) (size int))
  (%inflate "inflate" int (stream system-area-pointer) (flush int))
  (%inflate-reset "inflateReset" int (stream system-area-pointer))
  (%inflate-end "inflateEnd" int (stream system-area-pointer)))

(declaim (inline open-zlib))
(defun open-zlib ()
  "Open libz unless it is open. Return true if libz is open, else nil and the reason of the failure,
as text. From any thread."
  (if (library-addresses **libz**) (values t nil) (open-library **libz**)))

;;; Streams

(defconstant +idle-streams+ 8 "The number of streams of each kind that are kept for further use.")
(defconstant +zlib-memory+ 8 "The memLevel of deflateInit.")

(deftype zlib-format ()
  "The format of the compressed octets."
  '(member :gzip :deflate))

(defstruct (zlib-stream (:constructor make-zlib-stream (sap kind level)) (:copier nil))
  "A z_stream of zlib."
  (sap (int-sap 0) :type system-area-pointer :read-only t) ; the address of the z_stream
  ;; 0 and 1 compress to gzip and deflate, 2 and 3 decompress them
  (kind 0 :type (integer 0 3) :read-only t)
  (level 0 :type (integer 0 9)))        ; the level of compression

(declaim (sb-ext:freeze-type zlib-stream))

(declaim (type (simple-vector 4) **idle-streams**)
         (type cons **streams**))
(defglobal **idle-streams** (make-array 4 :initial-element '()))
(defglobal **streams** (list 0))        ; the number of z_streams; atomic

(defun zlib-stream-count ()
  "The number of z_streams, by which tests find leaks."
  (car **streams**))

(defun free-zlib-stream (stream)
  (let ((sap (zlib-stream-sap stream)))
    (if (< (zlib-stream-kind stream) 2) (%deflate-end sap) (%inflate-end sap))
    (alien-funcall (extern-alien "free" (function void system-area-pointer)) sap)
    (sb-ext:atomic-decf (car **streams**))))

(defun take-idle-stream (kind)
  (loop
    (let ((old (svref **idle-streams** kind)))
      (cond ((null old) (return nil))
            ((eq old (sb-ext:compare-and-swap (svref **idle-streams** kind) old (rest old)))
             (return (first old)))))))

(defun end-idle-streams ()
  "Free the streams that are not in use. From any thread."
  (dotimes (kind 4)
    (loop for stream = (take-idle-stream kind)
          while stream do (free-zlib-stream stream))))

(defun open-stream (kind level)
  "Return a new stream of KIND, or nil if there is no memory for it."
  (let ((sap (alien-funcall (extern-alien "calloc" (function system-area-pointer (unsigned 64)
                                                             (unsigned 64)))
                            1 +z-stream-octets+))
        (window-bits (if (evenp kind) (+ 15 16) 15)))
    (unless (zerop (sap-int sap))
      (cond ((= +z-ok+ (if (< kind 2)
                           (%deflate-init sap level +z-deflated+ window-bits +zlib-memory+ 0
                                          "1.2.11" +z-stream-octets+)
                           (%inflate-init sap window-bits "1.2.11" +z-stream-octets+)))
             (sb-ext:atomic-incf (car **streams**))
             (make-zlib-stream sap kind level))
            (t (alien-funcall (extern-alien "free" (function void system-area-pointer)) sap)
               nil)))))

(defun take-stream (kind level)
  "Return a stream of KIND, fresh or reset, which the caller owns afterwards. Return nil if there is
no memory for it."
  (let ((stream (take-idle-stream kind)))
    (cond ((null stream) (open-stream kind level))
          ((< kind 2)
           (%deflate-reset (zlib-stream-sap stream))
           (unless (= level (zlib-stream-level stream))
             (%deflate-params (zlib-stream-sap stream) level 0)
             (setf (zlib-stream-level stream) level))
           stream)
          (t (%inflate-reset (zlib-stream-sap stream))
             stream))))

(defun give-stream-back (stream)
  (let ((kind (zlib-stream-kind stream)))
    (if (<= +idle-streams+ (length (the list (svref **idle-streams** kind))))
        (free-zlib-stream stream)
        (loop with cell = (list stream)
              for old = (svref **idle-streams** kind)
              do (setf (cdr cell) old)
              until (eq old (sb-ext:compare-and-swap (svref **idle-streams** kind) old cell))))))

(defmacro with-zlib-stream ((variable kind level) &body body)
  "Evaluate BODY with VARIABLE bound to the sap of a z_stream of KIND. If there is no memory for the
stream, the value is :no-memory."
  (let ((stream (gensym "STREAM")))
    `(let ((,stream nil))
       (sb-sys:without-interrupts
         (unwind-protect
              (if (setf ,stream (take-stream ,kind ,level))
                  (let ((,variable (zlib-stream-sap ,stream)))
                    (sb-sys:with-local-interrupts ,@body))
                  :no-memory)
           (when ,stream (give-stream-back ,stream)))))))

(defmacro with-stream-buffers ((sap from start end to at limit) &body body)
  "Evaluate BODY with the input of the z_stream SAP set to the octets START to END of FROM, and its
output to the octets AT to LIMIT of TO."
  `(with-pinned-objects (,from ,to)
     (setf (sb-sys:sap-ref-sap ,sap +z-next-in+) (sap+ (vector-sap ,from) ,start)
           (sb-sys:sap-ref-32 ,sap +z-avail-in+) (- ,end ,start)
           (sb-sys:sap-ref-sap ,sap +z-next-out+) (sap+ (vector-sap ,to) ,at)
           (sb-sys:sap-ref-32 ,sap +z-avail-out+) (- ,limit ,at))
     ,@body))

;;; Whole messages

(deftype message-octets ()
  "A length that libz accepts in one step."
  '(unsigned-byte 31))

(define-hot deflate-octets ((format zlib-format) (level (integer 1 9)) (from octets)
                            (start message-octets) (end message-octets) (room message-octets))
    (values (or null octets) message-octets)
  "Compress the octets START to END of FROM. Return two values: octets that BORROW-OCTETS returned,
in which the result begins after ROOM octets, and the end of the result. Return nil and 0 if there
is no memory. libz must be open. From any thread."
  ;; the function that WITH-ZLIB-STREAM makes from its body is called once for each message
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
  (let ((octets nil) (result 0))
    (declare (type message-octets result))
    (with-zlib-stream (sap (if (eq format :gzip) 0 1) level)
      (let ((to (borrow-octets (+ room (the message-octets (%deflate-bound sap (- end start)))))))
        (with-stream-buffers (sap from start end to room (length to))
          (cond ((= +z-stream-end+ (%deflate sap +z-finish+))
                 (setf octets to
                       result (- (length to) (sb-sys:sap-ref-32 sap +z-avail-out+))))
                (t (give-octets-back to))))))
    (values octets result)))

(deftype inflation ()
  "The outcome of a decompression."
  '(member :ok :corrupt :truncated :too-long :no-memory))

(define-hot inflate-on ((sap system-area-pointer) (format zlib-format) (from octets)
                        (start message-octets) (end message-octets) (limit message-octets))
    (values inflation octets message-octets)
  "Decompress with the z_stream SAP. Return three values: the outcome, octets that BORROW-OCTETS
returned, and the number of these octets that are the message. The output has room for one octet
more than LIMIT, in order to detect a result that is too long."
  (let* ((most (1+ limit))
         (to (borrow-octets (min most (max 512 (* 4 (- end start))))))
         (fill 0))
    (declare (type (unsigned-byte 32) most fill) (type octets to))
    (loop
      (let* ((room (min most (length to)))
             (code (with-stream-buffers (sap from start end to fill room)
                     (%inflate sap +z-no-flush+)))
             (before fill))
        (setf start (- end (sb-sys:sap-ref-32 sap +z-avail-in+))
              fill (- room (sb-sys:sap-ref-32 sap +z-avail-out+)))
        (flet ((finish (outcome) (return (values outcome to (min fill limit)))))
          (cond ((> fill limit) (finish :too-long))
                ((= code +z-stream-end+)
                 ;; a gzip file may have several members (RFC 1952 section 2.2)
                 (cond ((= start end) (finish :ok))
                       ((eq format :gzip) (%inflate-reset sap))
                       (t (finish :corrupt))))
                ((= code +z-mem-error+) (finish :no-memory))
                ((not (or (= code +z-ok+) (= code +z-buf-error+))) (finish :corrupt))
                ((= fill room) (setf to (grow-output to fill most)))
                ((or (= start end) (= before fill)) (finish :truncated))))))))

(defun grow-output (octets fill most)
  "Return a vector that is longer than OCTETS, of at most MOST octets, with the same first FILL
octets."
  (declare (type octets octets) (type index fill most))
  (let ((longer (borrow-octets (min most (* 4 (length octets))))))
    (copy-octets octets 0 fill longer 0)
    (give-octets-back octets)
    longer))

(define-hot inflate-beginning ((format zlib-format) (from octets) (start message-octets)
                               (end message-octets) (limit message-octets))
    (values inflation (or null octets) message-octets)
  "Do what INFLATE-OCTETS does, but with every outcome also return octets that BORROW-OCTETS
returned, or nil, and the number of these octets, at most LIMIT, that are the beginning of the
result."
  ;; the function that WITH-ZLIB-STREAM makes from its body is called once for each message
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
  (let ((outcome :no-memory) (octets nil) (length 0))
    (declare (type message-octets length) (type (or null octets) octets))
    (with-zlib-stream (sap (if (eq format :gzip) 2 3) 0)
      (setf (values outcome octets length) (inflate-on sap format from start end limit)))
    (values outcome octets length)))

(define-hot inflate-octets ((format zlib-format) (from octets) (start message-octets)
                            (end message-octets) (limit message-octets))
    (values inflation (or null octets) message-octets)
  "Decompress the octets START to END of FROM, a message in FORMAT. Return three values: :ok, octets
that BORROW-OCTETS returned, and the number of these octets that are the result. After a failure
return :too-long if the result has more than LIMIT octets, :truncated, :corrupt or :no-memory, and
nil and 0. libz must be open. From any thread."
  (multiple-value-bind (outcome octets length) (inflate-beginning format from start end limit)
    (cond ((eq outcome :ok) (values :ok octets length))
          (t (when octets (give-octets-back octets))
             (values outcome nil 0)))))

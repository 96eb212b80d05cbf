;;;; Zstandard (RFC 8878) through libzstd: octets in, octets out, one message at a time. The output
;;;; is bounded, whatever the input claims. Messages are decompressed directly into the result's
;;;; octets, so the window that a frame requests takes no memory.

(in-package #:clgrpc.os)

(define-library **libzstd** ("libzstd.so.1" "libzstd.so") ()
  (%zstd-bound "ZSTD_compressBound" (unsigned 64) (size (unsigned 64)))
  (%zstd-compress "ZSTD_compress" (unsigned 64) (to system-area-pointer) (room (unsigned 64))
                  (from system-area-pointer) (size (unsigned 64)) (level int))
  (%zstd-decompress "ZSTD_decompress" (unsigned 64) (to system-area-pointer) (room (unsigned 64))
                    (from system-area-pointer) (size (unsigned 64)))
  (%zstd-error-p "ZSTD_isError" (unsigned 32) (result (unsigned 64)))
  (%zstd-error-code "ZSTD_getErrorCode" int (result (unsigned 64))))

(defun open-zstd ()
  "Open libzstd unless it is open. Return true if libzstd is open, else nil and the reason of the
failure, as text. From any thread."
  (open-library **libzstd**))

(macrolet ((define-zstd-errors (&rest rows)
             `(progn ,@(loop for (name c-name value) in rows
                             collect `(defconstant ,name ,value
                                        ,(format nil "zstd_errors.h's ~A." c-name))))))
  (define-zstd-errors
    (+zstd-no-memory+ "ZSTD_error_memory_allocation" 64)
    (+zstd-room-too-small+ "ZSTD_error_dstSize_tooSmall" 70)
    (+zstd-source-size-wrong+ "ZSTD_error_srcSize_wrong" 72)))

(defun zstd-octets (level from start end room)
  "Compress the octets START to END of FROM at LEVEL, 1 to 9. Return the values of DEFLATE-OCTETS.
libzstd must be open. From any thread."
  (declare (type octets from) (type message-octets start end room))
  (let* ((bound (%zstd-bound (- end start)))
         (to (borrow-octets (+ room bound)))
         (result (with-pinned-objects (from to)
                   (%zstd-compress (sap+ (vector-sap to) room) bound
                                   (sap+ (vector-sap from) start) (- end start) level))))
    (cond ((zerop (%zstd-error-p result)) (values to (+ room result)))
          (t (give-octets-back to)
             (values nil 0)))))

(defun zstd-failure (result)
  "Return the outcome, an INFLATION or :full, of a decompression that returned RESULT, an error of
libzstd."
  (let ((code (%zstd-error-code result)))
    (cond ((= code +zstd-room-too-small+) :full)
          ((= code +zstd-source-size-wrong+) :truncated)
          ((= code +zstd-no-memory+) :no-memory)
          (t :corrupt))))

(defun expand-zstd (from start end limit)
  "Decompress the octets START to END of FROM. Return the values of INFLATE-OCTETS. If the result
does not fit into the present vector, decompress again into a vector of four times the length.
Therefore a short message does not need as much room as the longest message. libzstd must be open.
From any thread."
  (declare (type octets from) (type message-octets start end limit))
  (loop with most = (1+ limit)
        for room of-type (unsigned-byte 32) = (min most (max 512 (* 4 (- end start))))
          then (min most (* 4 room))
        for to of-type octets = (borrow-octets room)
        for result = (with-pinned-objects (from to)
                       (%zstd-decompress (vector-sap to) room (sap+ (vector-sap from) start)
                                         (- end start)))
        for outcome = (cond ((= start end) :truncated) ; no frame at all
                            ((plusp (%zstd-error-p result)) (zstd-failure result))
                            ((> result limit) :too-long)
                            (t :ok))
        do (when (eq :ok outcome) (return (values :ok to result)))
           (give-octets-back to)
           (unless (and (eq :full outcome) (< room most))
             (return (values (if (eq :full outcome) :too-long outcome) nil 0)))))

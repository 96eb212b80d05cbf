;;;; The file of a binary log: entries, each after four octets of its length, the most significant
;;;; first, as grpc-go writes them. All functions here run on the journal's thread, except the one
;;;; that makes a file.
;;;;
;;;; 1. A file is replaced by a new one that only its owner can read. The old file is kept: FILE
;;;;    becomes FILE.1, FILE.1 becomes FILE.2, and so on up to the first number without a file; if
;;;;    there are KEPT older files, the last one is removed.
;;;; 2. This happens when FILE would get longer than MAX-OCTETS, and when ROTATE-ENTRY-FILE is
;;;;    called.
;;;; 3. A file ends with a whole entry. A write that fails, as on a full disk, may have written some
;;;;    of the entries; the file is truncated after the last complete one, so that later ones can be
;;;;    read. If the file cannot be truncated, a new file is begun.
;;;;
;;;; A device or a pipe is only written to: it is neither replaced nor truncated.

(in-package #:clgrpc.logs)

(defconstant +gathered-octets+ 65536
  "Entries are written together up to this number of octets.")

(defstruct (entry-file (:constructor %make-entry-file) (:copier nil))
  "The file to which entries are written."
  (name "" :type string :read-only t)   ; the path, for people
  (max-octets 1 :type (integer 1) :read-only t) ; the most octets that a file may have
  (kept 0 :type unsigned-byte :read-only t) ; how many older files are kept
  (write #'os:write-octets :type function) ; as that
  (rotating nil :type boolean)          ; true if the file is a regular file
  (descriptor nil :type (or null fixnum)) ; nil if the file is closed, or could not be begun
  (size 0 :type unsigned-byte)          ; how many octets the file has
  (closed nil :type boolean)            ; true once nothing more is written
  (gathered (make-buffer) :type buffer)) ; entries that are not written yet

(declaim (sb-ext:freeze-type entry-file))

(define-printer (file entry-file)
  "~A, ~D octets" (entry-file-name file) (entry-file-size file))

(defun entry-path (file &optional number)
  "The path of FILE, or of the older file with NUMBER, as octets."
  (string-octets (format nil "~A~@[.~D~]" (entry-file-name file) number)))

(defun refuse-file (file why)
  (misuse "Cannot write ~A: ~A" (entry-file-name file) why))

(defun open-entry-file (pathname max-octets kept)
  "An ENTRY-FILE at PATHNAME; signal MISUSE if nothing can be written there."
  (let* ((file (%make-entry-file :name (sb-ext:native-namestring (merge-pathnames pathname))
                                 :max-octets max-octets :kept kept))
         (path (entry-path file)))
    (ecase (os:file-type path)
      ((nil :regular)
       (setf (entry-file-rotating file) t)
       (begin-file file))
      ((:device :pipe)
       (let ((descriptor (os:open-to-write path)))
         (when (os:failed-p descriptor)
           (refuse-file file (if (= descriptor (- os:+enxio+))
                                 "this pipe has no reader."
                                 (os:errno-text descriptor))))
         (setf (entry-file-descriptor file) descriptor)))
      (:link (refuse-file file "it is a symbolic link; name its target."))
      (:directory (refuse-file file "it is a directory."))
      (:other (refuse-file file "it is not a file.")))
    file))

(defun keep-older (file)
  "Rename the file at FILE's path, and older files whose numbers are needed, to the next number."
  (loop for number downfrom (1- (loop for free from 1 below (entry-file-kept file)
                                      while (os:file-type (entry-path file free))
                                      finally (return free)))
          to 1
        do (os:rename-file-to (entry-path file number) (entry-path file (1+ number))))
  (let ((result (if (zerop (entry-file-kept file))
                    (os:remove-file (entry-path file))
                    (os:rename-file-to (entry-path file) (entry-path file 1)))))
    (when (os:failed-p result) (refuse-file file (os:errno-text result)))))

(defun begin-file (file)
  "Replace FILE, a regular file, with an empty one. Signal MISUSE if the file cannot be begun."
  (let ((path (entry-path file)))
    (multiple-value-bind (type size) (os:file-type path)
      (cond ((null type))
            ((not (eq :regular type)) (refuse-file file "the present file is not a regular file."))
            ((zerop size) (os:remove-file path))
            (t (keep-older file))))
    (let ((descriptor (os:create-file path #o600)))
      (when (os:failed-p descriptor) (refuse-file file (os:errno-text descriptor)))
      (setf (entry-file-descriptor file) descriptor
            (entry-file-size file) 0))))

(defun end-file (file)
  (let ((descriptor (shiftf (entry-file-descriptor file) nil)))
    (when descriptor (os:close-descriptor descriptor))))

;;; Writing

(defun whole-entries (octets start end limit)
  "Two values about the entries in OCTETS from START to END: the end of the last entry that ends by
LIMIT, and the number of entries after it."
  (loop with beyond = 0 and last = start
        for at = start then next
        while (< at end)
        for next = (+ at 4 (u32be octets at))
        do (if (<= next limit)
               (setf last next)
               (incf beyond))
        finally (return (values last beyond))))

(defun write-out (file octets start end)
  "Write the octets START to END to FILE, as far as possible. Return the position reached, and the
error as a text, or nil if the position is END."
  (loop with at = start
        while (< at end)
        do (let ((result (funcall (entry-file-write file) (entry-file-descriptor file)
                                  octets at end)))
             (if (os:failed-p result)
                 (return (values at (os:errno-text result)))
                 (incf at result)))
        finally (return (values at nil))))

(defun mend-file (file excess)
  "Truncate FILE by its last EXCESS octets, a part of an entry."
  (let* ((descriptor (entry-file-descriptor file))
         (size (os:file-size descriptor)))
    (when (or (os:failed-p size)
              (os:failed-p (os:truncate-file descriptor (max 0 (- size excess)))))
      (end-file file))))                ; the next entries begin another file

(defun ensure-begun (file)
  "Begin FILE if it could not be begun before. Signal MISUSE if FILE still cannot be begun, or is
closed."
  (when (entry-file-closed file) (refuse-file file "it is closed."))
  (unless (entry-file-descriptor file) (begin-file file)))

(defun begin-gathering (file)
  (let ((gathered (entry-file-gathered file)))
    (if (< (* 4 +gathered-octets+) (length (buffer-octets gathered)))
        (setf (entry-file-gathered file) (make-buffer)) ; a long entry had enlarged the old buffer
        (clear-buffer gathered))))

(defun write-gathered (file)
  "Write the entries that FILE has gathered. Return two values: how many entries were lost, and the
reason, a text or nil."
  (let* ((gathered (entry-file-gathered file))
         (octets (buffer-octets gathered))
         (start (buffer-start gathered)))
    (multiple-value-bind (stopped why)
        (handler-case
            (progn (ensure-begun file)
                   (write-out file octets start (buffer-end gathered)))
          (misuse (condition) (values start (princ-to-string condition))))
      (multiple-value-bind (whole lost)
          (whole-entries octets start (buffer-end gathered) stopped)
        (incf (entry-file-size file) (- whole start))
        (when (and (< whole stopped) (entry-file-rotating file))
          (mend-file file (- stopped whole)))
        (begin-gathering file)
        (values lost why)))))

(defun add-entry (file octets)
  "Gather the entry OCTETS, to be written to FILE soon. Return the values of WRITE-GATHERED. Signal
MISUSE if FILE must be begun again and cannot be; then OCTETS are lost."
  (let ((size (+ 4 (length octets)))
        (lost 0)
        (why nil))
    (flet ((write-now () (setf (values lost why) (write-gathered file))))
      (when (and (entry-file-rotating file)
                 (< (entry-file-max-octets file)
                    (+ (entry-file-size file) (buffer-fill (entry-file-gathered file)) size)))
        (write-now)
        (when (plusp (entry-file-size file)) (rotate-entry-file file)))
      (let ((gathered (entry-file-gathered file)) (prefix (make-octets 4)))
        (setf (u32be prefix 0) (length octets))
        (append-octets gathered prefix)
        (append-octets gathered octets)
        (when (and (zerop lost) (<= +gathered-octets+ (buffer-fill gathered)))
          (write-now))))
    (values lost why)))

(defun rotate-entry-file (file)
  "Begin FILE again, if it is a regular file; its present contents are kept."
  (when (entry-file-rotating file)
    (end-file file)
    (ensure-begun file)))

(defun close-entry-file (file)
  (setf (entry-file-closed file) t)
  (end-file file))

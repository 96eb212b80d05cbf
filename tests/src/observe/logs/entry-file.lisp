;;;; The binary log's file: old entries are kept, and entries are whole when read, whatever the disk
;;;; does.

(in-package #:clgrpc.tests.logs)

(defmacro with-log-path ((path) &body body)
  "Evaluate BODY with PATH bound to the name of a file that does not exist yet."
  `(clgrpc.tests.support:with-folder (,path)
     (let ((,path (format nil "~Acalls.log" ,path))) ,@body)))

(defun numbered-entry (number &optional (size 10))
  "An entry with NUMBER, as octets, about SIZE of them."
  (grpc:serialize (binlog:make-grpc-log-entry
                   :call-id number
                   :message (binlog:make-message :data (make-octets size)))))

(defun numbers-in (path)
  "The numbers of the entries in the file at PATH, all of which can be read; nil without one."
  (with-open-file (stream path :element-type '(unsigned-byte 8) :if-does-not-exist nil)
    (and stream
         (loop for entry = (grpc:read-binary-log stream)
               while entry collect (binlog:grpc-log-entry-call-id entry)))))

(defun add-numbers (file numbers &key (size 10))
  "Write entries with NUMBERS to FILE; return how many were lost."
  (+ (loop for number in numbers sum (logs::add-entry file (numbered-entry number size)))
     (logs::write-gathered file)))

(defun writer-with-room (room)
  "A function like OS:WRITE-OCTETS, for a disk that has as many octets left as the car of ROOM."
  (lambda (descriptor octets start end)
    (let ((count (min (- end start) (car room))))
      (cond ((zerop count) -28)         ; ENOSPC
            (t (decf (car room) count)
               (os:write-octets descriptor octets start (+ start count)))))))

(test what-follows-a-full-disk-can-be-read
  "This holds whichever octet is the last for which there is room."
  (let ((size (+ 4 (length (numbered-entry 1)))))
    (dotimes (last (* 2 size))
      (with-log-path (path)
        (let* ((file (logs::open-entry-file path 1000000 2))
               (room (list (+ size last)))
               (whole (floor (car room) size)))
          (setf (logs::entry-file-write file) (writer-with-room room))
          (is (= (- 5 whole) (add-numbers file '(1 2 3 4 5))))
          (is (= 1 (add-numbers file '(6))))
          (setf (car room) 1000)
          (is (= 0 (add-numbers file '(7 8))))
          (logs::close-entry-file file)
          (is (equal (append (subseq '(1 2 3 4 5) 0 whole) '(7 8)) (numbers-in path))))))))

(test a-file-that-cannot-be-cut-off-is-left
  "The next entries are in another file."
  (with-log-path (path)
    (let ((file (logs::open-entry-file path 1000000 2)) (writes 0))
      (add-numbers file '(1))
      (setf (logs::entry-file-write file)
            (fn (descriptor octets start _end)
              (case (incf writes)
                (1 (os:write-octets descriptor octets start (+ start 5)))
                (t (sb-posix:dup2 0 descriptor) ; nothing more can be done with the file
                   -5))))               ; EIO
      (is (= 1 (add-numbers file '(2))))
      (setf (logs::entry-file-write file) #'os:write-octets)
      (is (= 0 (add-numbers file '(3))))
      (logs::close-entry-file file)
      (is (equal '(3) (numbers-in path))))))

(test a-file-has-a-length-and-older-ones-are-kept
  (with-log-path (path)
    (let ((file (logs::open-entry-file path 1000 2)))
      (is (= 0 (add-numbers file '(1 2 3 4 5 6 7) :size 450)))
      (logs::close-entry-file file)
      (flet ((numbers (&optional number) (numbers-in (format nil "~A~@[.~D~]" path number))))
        (is (equal '((7) (5 6) (3 4) nil) (list (numbers) (numbers 1) (numbers 2) (numbers 3))))
        (is (= #o600 (logand #o777 (sb-posix:stat-mode (sb-posix:stat path)))))
        ;; an entry that is too long for any file gets a file of its own
        (let ((file (logs::open-entry-file path 1000 2)))
          (is (= 0 (add-numbers file '(8 9) :size 5000)))
          (logs::close-entry-file file))
        (is (equal '((9) (8) (7)) (list (numbers) (numbers 1) (numbers 2))))))))

(test only-files-that-are-there-get-another-number
  "This holds however many may be kept."
  (with-log-path (path)
    (flet ((write-number (number)
             (let ((file (logs::open-entry-file path 1000 1000000000)))
               (is (= 0 (add-numbers file (list number))))
               (logs::close-entry-file file)))
           (older (number) (format nil "~A.~D" path number)))
      (mapc #'write-number '(1 2 3))
      (is (equal '((3) (2) (1) nil)
                 (mapcar #'numbers-in (list path (older 1) (older 2) (older 3)))))
      (delete-file (older 1))
      (write-number 4)
      (is (equal '((4) (3) (1) nil)
                 (mapcar #'numbers-in (list path (older 1) (older 2) (older 3))))))))

(test the-log-of-the-run-before-is-kept
  (with-log-path (path)
    (flet ((log-a-call (&rest options)
             (let ((log (apply #'grpc:make-binary-log :filter "*" :file path options)))
               (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
                 (ask channel (note 4)))
               (grpc:close-binary-log log)))
           (count-in (suffix) (length (numbers-in (concatenate 'string path suffix)))))
      (log-a-call)
      (is (= 6 (count-in "")))
      ;; a run without calls, whose file is empty, takes no place
      (grpc:close-binary-log (grpc:make-binary-log :filter "*" :file path))
      (grpc:close-binary-log (grpc:make-binary-log :filter "*" :file path))
      (is (equal '(0 6 0) (mapcar #'count-in '("" ".1" ".2"))))
      (log-a-call :kept-files 1)
      (log-a-call :kept-files 1)
      (is (equal '(6 6 0) (mapcar #'count-in '("" ".1" ".2"))))
      (log-a-call :kept-files 0)
      (is (equal '(6 6 0) (mapcar #'count-in '("" ".1" ".2")))))))

(test a-log-is-begun-anew-when-asked
  "For logrotate, which has renamed the file, or without that."
  (with-log-path (path)
    (let ((log (grpc:make-binary-log :filter "*" :file path)) (moved (format nil "~A-moved" path)))
      (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
        (ask channel (note 4))
        (is-true (grpc:flush-log))
        (rename-file path moved)
        (grpc:rotate-binary-log log)
        (is-true (grpc:flush-log))
        (is (zerop (length (numbers-in path))))
        (ask channel (note 4))
        (grpc:rotate-binary-log log)
        (grpc:close-binary-log log)
        (is (equal '(6 0 6) (mapcar (lambda (path) (length (numbers-in path)))
                                    (list moved path (format nil "~A.1" path)))))
        (finishes (grpc:rotate-binary-log log) "a closed log may be rotated")))))

(test what-is-no-file
  "Devices and pipes are written, other objects refused; a pipe without a reader is not waited for."
  (with-log-path (path)
    (flet ((refusal (path)
             (handler-case (progn (grpc:make-binary-log :filter "*" :file path) nil)
               (grpc:misuse (condition) (princ-to-string condition)))))
      (is (search "is a directory" (refusal (directory-namestring path))))
      (is (search "No such file or directory" (refusal (format nil "~A/below" path))))
      (sb-posix:symlink "/nowhere" path)
      (is (search "is a symbolic link" (refusal path)))
      (sb-posix:unlink path)
      (sb-posix:mkfifo path #o600)
      (is (search "has no reader" (refusal path)))
      (sb-posix:unlink path))
    (with-probe (channel :server server) (:ask #'double)
      (loop for (device dropped) in '(("/dev/null" 0) ("/dev/full" 12))
            do (let ((log (grpc:make-binary-log :filter "*" :file device)))
                 (grpc:with-channel (logged (grpc:server-address server) :observer log)
                   (ask logged (note 4))
                   (ask logged (note 4)))
                 (grpc:rotate-binary-log log)
                 (grpc:close-binary-log log)
                 (is (= dropped (grpc:binary-log-dropped log)) "~A" device)
                 (is-true (probe-file device))))
      (is (= 1 (length (events-of :binary-log-failed))) "the failure is logged once"))))

(test closing-does-not-hold-up-the-log
  "This holds whatever the journal's thread does meanwhile."
  (with-log-path (path)
    (let ((log (grpc:make-binary-log :filter "*" :file path)))
      (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
        (ask channel (note 4))
        (grpc:close-binary-log log)
        (is-true (grpc:flush-log))
        (is (= 6 (length (numbers-in path))))
        (ask channel (note 4))
        (grpc:close-binary-log log)
        (is-true (wait-until (lambda () (= 6 (grpc:binary-log-dropped log))))
                 "later entries are counted")))))
